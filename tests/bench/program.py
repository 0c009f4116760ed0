"""Measure Grantwire against the physical limit and its peers, and write the report."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.main import EXIT_INTERRUPTED
from infra.local.progress import Progress
from tests.bench.alone import become_function
from tests.bench.effort import FULL, QUICK, SMOKE
from tests.bench.machine import describe
from tests.bench.report import Report
from tests.bench.run import FOLDER, LOGS, running
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from tests.bench.effort import Effort
    from tests.bench.results import Section
    from tests.bench.servers import Servers

    Measure = Callable[[Servers, Effort, Progress], Section]

# In the order of the report; a module is imported only if it is asked for.
SECTIONS = {
    "requests": "tests.bench.paths.requests",
    "handlers": "tests.bench.paths.handlers",
    "wakeup": "tests.bench.paths.wakeup",
    "relay": "tests.bench.paths.relay",
    "bridge": "tests.bench.paths.bridge",
    "sweep": "tests.bench.paths.sweep",
    "growth": "tests.bench.growth",
    "cold_start": "tests.bench.cold_start",
    "journey": "tests.bench.journey",
    "peers": "tests.bench.peers",
}
# Settings of somebody's shell, which the functions would follow.
_OTHERS = ("AWS_", "DATABASE_", "ENTITLEMENT_", "IDEMPOTENCY_", "NATS_", "NOTIFICATION_", "PLAINTEXT_", "POWERTOOLS_")


def main(words: Sequence[str]) -> int:
    """Measure, write the page and list the targets that are met and missed; a miss fails only a strict run."""
    arguments = _parse(words)
    progress = Progress(os.fdopen(os.dup(sys.stdout.fileno()), "w"))
    become_function({})  # from here on, standard output is for log lines that nobody reads
    signal.signal(signal.SIGTERM, _interrupt)
    for name in [name for name in os.environ if name.startswith(_OTHERS)]:
        del os.environ[name]
    try:
        report = _measured(arguments.only, arguments.effort, progress)
    except CommandError as error:
        progress.print_error(error)
        return 1
    except KeyboardInterrupt:
        progress.print_line("\nInterrupted. The servers are gone, and nothing was written.")
        return EXIT_INTERRUPTED
    page = arguments.output or _page(report)
    report.write(page)
    progress.print_line(f"\n{report.text()}\n\nThe report: {page}")
    progress.print_line(report.summary())
    return 1 if arguments.strict and report.misses() else 0


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.bench", description="Measure against the physical limit and peers.")
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", dest="effort", action="store_const", const=QUICK, help="minutes, to look at")
    effort.add_argument("--smoke", dest="effort", action="store_const", const=SMOKE, help="seconds, to see it work")
    parser.set_defaults(effort=FULL)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="leave the others out")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the page; of a full run, docs/benchmarks.md")
    parser.add_argument("--strict", action="store_true", help="fail if a target is missed")
    return parser.parse_args(words)


def _measured(names: Sequence[str], effort: Effort, progress: Progress) -> Report:
    """All sections of these names, or none: figures of something that does not work are worth nothing."""
    chosen = {name: _measure(module) for name, module in SECTIONS.items() if name in names}
    sections: list[Section] = []
    with running(progress) as servers:
        machine = describe(servers)
        for name, measure in chosen.items():
            progress.print_line(f"\n{name}")
            try:
                sections.append(measure(servers, effort, progress))
                servers.drop_databases()
            except Exception as error:
                traceback.print_exc()
                hint = f"The servers' logs are in {LOGS}; `--only {name}` repeats it alone."
                raise CommandError(f"The section {name} failed: {error!r}", hint=hint) from error
    left_out = [name for name in SECTIONS if name not in chosen]
    return Report(effort, dt.datetime.now(tz=dt.UTC).date(), machine, sections, left_out)


def _measure(module: str) -> Measure:
    measure: Measure = import_module(module).measure
    return measure


def _page(report: Report) -> Path:
    """Only a full run replaces the page that people quote."""
    complete = report.effort == FULL and not report.left_out
    return ROOT / "docs" / "benchmarks.md" if complete else FOLDER / "report" / "benchmarks.md"


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
