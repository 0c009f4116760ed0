"""The command line of the benchmark: measures Grantwire against limits and alternatives, and writes the report."""

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
from tests.bench.effort import FULL, QUICK, SMOKE
from tests.bench.machine import describe
from tests.bench.report import Report
from tests.bench.run import FOLDER, LOGS, start_servers
from tests.bench.subprocesses import use_function_environment
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from tests.bench.effort import Effort
    from tests.bench.results import Section
    from tests.bench.servers import Servers

    Measure = Callable[[Servers, Effort, Progress], Section]

# In the order of the report. A module is imported only if its section is selected.
SECTIONS = {
    "requests": "tests.bench.paths.requests",
    "checks": "tests.bench.paths.checks",
    "handlers": "tests.bench.paths.handlers",
    "batches": "tests.bench.paths.batches",
    "wakeup": "tests.bench.paths.wakeup",
    "relay": "tests.bench.paths.relay",
    "bridge": "tests.bench.paths.bridge",
    "confirmation": "tests.bench.paths.confirmation",
    "sweep": "tests.bench.paths.sweep",
    "expiry": "tests.bench.paths.expiry",
    "changes": "tests.bench.paths.changes",
    "growth": "tests.bench.growth",
    "cold_start": "tests.bench.cold_start",
    "idle": "tests.bench.idle",
    "end_to_end": "tests.bench.end_to_end",
    "alternatives": "tests.bench.alternatives",
}
# Settings of the developer's shell, which the functions would read.
_FOREIGN_PREFIXES = (
    "AWS_",
    "CHANGES_",
    "DATABASE_",
    "ENTITLEMENT_",
    "IDEMPOTENCY_",
    "NATS_",
    "NOTIFICATION_",
    "PLAINTEXT_",
    "POWERTOOLS_",
)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark, write the report, print the targets, and return the exit code.

    A missed target fails the run only with --strict.
    """
    arguments = _parse(argv)
    progress = Progress(os.fdopen(os.dup(sys.stdout.fileno()), "w"))
    use_function_environment({})  # discards the functions' log lines
    signal.signal(signal.SIGTERM, _interrupt)
    for name in [name for name in os.environ if name.startswith(_FOREIGN_PREFIXES)]:
        del os.environ[name]
    try:
        report = _run_sections(arguments.only, arguments.effort, progress)
    except CommandError as error:
        progress.print_error(error)
        return 1
    except KeyboardInterrupt:
        progress.print_line("\nInterrupted. The servers are stopped and no report was written.")
        return EXIT_INTERRUPTED
    page = arguments.output or _default_page(report)
    report.write(page)
    progress.print_line(f"\n{report.text()}\n\nReport: {page}")
    progress.print_line(report.summary())
    return 1 if arguments.strict and report.misses() else 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.bench", description="Measure Grantwire against limits and alternatives."
    )
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", dest="effort", action="store_const", const=QUICK, help="less effort, takes minutes")
    effort.add_argument(
        "--smoke",
        dest="effort",
        action="store_const",
        const=SMOKE,
        help="least effort, only proves that the benchmark works",
    )
    parser.set_defaults(effort=FULL)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections to run")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="page to write; default for a full run: docs/benchmarks.md"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    return parser.parse_args(argv)


def _run_sections(names: Sequence[str], effort: Effort, progress: Progress) -> Report:
    """Run the sections and return the report. Raises CommandError if a section fails: there is no partial report."""
    selected = {name: _load_measure(module) for name, module in SECTIONS.items() if name in names}
    sections: list[Section] = []
    with start_servers(progress) as servers:
        machine = describe(servers)
        for name, measure in selected.items():
            progress.print_line(f"\n{name}")
            try:
                sections.append(measure(servers, effort, progress))
                servers.drop_databases()
            except Exception as error:
                traceback.print_exc()
                hint = f"The logs of the servers are in {LOGS}. Try `make bench ARGS='--only {name}'`."
                raise CommandError(f"Section {name} failed: {error!r}", hint=hint) from error
    left_out = [name for name in SECTIONS if name not in selected]
    return Report(effort, dt.datetime.now(tz=dt.UTC).date(), machine, sections, left_out)


def _load_measure(module: str) -> Measure:
    measure: Measure = import_module(module).measure
    return measure


def _default_page(report: Report) -> Path:
    """Return the page to write: only a full and complete run replaces docs/benchmarks.md."""
    complete = report.effort == FULL and not report.left_out
    return ROOT / "docs" / "benchmarks.md" if complete else FOLDER / "report" / "benchmarks.md"


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
