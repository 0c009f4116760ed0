"""`make check`: linters, type checker, comparisons of generated files, and a short benchmark."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING

from infra.local.deployment.sam import UNREACHABLE_ENDPOINT, aws_environment
from infra.local.errors import CommandError
from infra.local.paths import CACHE, CHECKOUT, PACKAGES, STATE
from infra.local.progress import tail
from infra.local.system import programs
from infra.local.system.processes import Launch, defer_interrupts
from infra.local.toolchain import browser

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from infra.local.progress import Progress

CONSOLE_SCRIPTS = ("functions/console/page", "tests/browser")  # with the style sheet
CHECKS = {
    "style": ("ruff", "check", "."),
    "format": ("ruff", "format", "--check", "."),
    # T12: .oxlintrc.json has the rules, .editorconfig the width and the indentation.
    "console style": ("oxlint", "--deny-warnings", *CONSOLE_SCRIPTS),
    "console format": ("oxfmt", "--check", *CONSOLE_SCRIPTS),
    "types": ("mypy",),
    "architecture": ("lint-imports", "--cache-dir", ".grantwire/cache/importlinter"),
    "events": ("python", "-m", "infra.local.toolchain.protobuf"),
    "template": (
        *("cfn-lint", "template.yaml"),
        *("infra/aws/network.yaml", "infra/aws/database.yaml", "infra/aws/nats.yaml"),
    ),
    "SAM template": ("sam", "validate", "--lint", "--template-file", "template.yaml"),
    "locks": ("python", "-m", "infra.local.toolchain.requirements"),
    # E5, I7, J1, J5, X6: generated requests, an AWS without layers, a restarted emulator, a new checkout, all layers.
    "deployments": ("pytest", "-q", "tests/deployments"),
    # The tests of SQL on the PostgreSQL versions that `make test` leaves out.
    "older PostgreSQL": ("python", "-m", "tests.support.older_postgres"),
    # Every section of `make bench` once, at its smallest size. It takes longer than the timeout of a test.
    "bench": ("pytest", "-q", "tests/bench/test_smoke.py"),
    # C14, C17, C29: the wheel of the library in a fresh environment, killed workers, and many checks by threads.
    "library": ("python", "-m", "tests.support.library_proofs"),
    # T6, T12: the console in a browser: its modules alone, and on a deployed stack.
    "console": ("pytest", "-q", "tests/browser"),
    # C13: the library's coverage by its own tests, on one PostgreSQL.
    "coverage": (
        *("pytest", "-q", "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", "-k", "not pg15"),
        *("layers/idempotency/tests/unit", "layers/idempotency/tests/integration"),
        *(
            "--cov=grantwire_idempotency",
            "--cov-branch",
            "--cov-report=term-missing:skip-covered",
            "--cov-fail-under=80",
        ),
    ),
}
# Only by name, because each takes a quarter of an hour or more.
LONG_CHECKS = {
    # W4: each fault of `make fault` on a deployed stack. It waits for what is late.
    "faults": ("pytest", "-q", "tests/faults"),
    # W1: 200 random runs on bare workers, in which the stream loses messages.
    "losses": ("python", "-m", "tests.support.stream_loss_runs"),
    # W7: contended batches beside all workers.
    "contention": ("python", "-m", "tests.support.contention", "10000"),
}

# Most checks keep one core busy. They start in the order above, the short ones first.
AT_ONCE = min(2, os.cpu_count() or 1)
POLL_SECONDS = 0.05
SUMMARY_LINES = 20
# What pytest says at its end: the tests that failed, why the coverage is too low, and the counts.
PYTEST_SUMMARY = re.compile(r"(FAILED|ERROR|FAIL) |\d+ (passed|failed|errors?|skipped)\b.* in [\d.]+s")


def check(arguments: Sequence[str], progress: Progress) -> int:
    """Run all checks but the long ones, or the named ones, also after a failure; return 1 if any failed."""
    known = CHECKS | LONG_CHECKS
    if unknown := [name for name in arguments if name not in known]:
        raise CommandError(f"No check is named {', '.join(unknown)}.", hint=f"The checks are: {', '.join(known)}.")
    selected = {name: command for name, command in known.items() if name in (arguments or CHECKS)}
    if "console" in selected and browser.find_browser() is None:
        progress.print_line(f"console: skipped. {browser.MISSING}")
        del selected["console"]
    failed = run_checks(selected, progress)
    for name, log in failed.items():
        progress.print_line("\n".join([f"\n{name} failed:", *(f"    {line}" for line in summarize(log))]))
    progress.print_line(f"\nFailed: {', '.join(failed)}" if failed else "\nAll checks passed.")
    return 1 if failed else 0


def run_checks(commands: Mapping[str, Sequence[str]], progress: Progress) -> dict[str, Path]:
    """Run all commands, several at the same time, and return the logs of those that failed; an interrupt stops them."""
    failed: dict[str, Path] = {}
    waiting = list(commands.items())
    running: list[_Check] = []
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                with defer_interrupts():
                    running.append(_Check(*waiting.pop(0), progress))
            for ended in [check for check in running if check.program.poll() is not None]:
                running.remove(ended)
                if not ended.report(progress):
                    failed[ended.name] = ended.program.log
            time.sleep(POLL_SECONDS)
    finally:
        for check in running:
            check.program.stop()
            progress.end_step(check.step, succeeded=False)
    return {name: failed[name] for name in commands if name in failed}


class _Check:
    """A check that runs."""

    def __init__(self, name: str, command: Sequence[str], progress: Progress) -> None:
        self.name = name
        log = STATE / "checks" / f"{name.replace(' ', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        self.step = progress.begin_step(f"{name}: {' '.join(command)}")
        program = programs.program_path(command[0])
        self.program = programs.Program(
            Launch(command=[program, *command[1:]], environment=_environment(), log=log, directory=CHECKOUT)
        )

    def report(self, progress: Progress) -> bool:
        """Print the result of the ended program, with the end of its log if it failed; return whether it succeeded."""
        succeeded = self.program.poll() == 0
        progress.end_step(self.step, succeeded=succeeded)
        if not succeeded:
            progress.print_error(CommandError(f"{self.name} failed.", log=self.program.log))
        return succeeded


def summarize(log: Path) -> list[str]:
    """Return the lines of a log that say what failed: the summary of pytest, or else the last lines."""
    lines = [line for line in tail(log, sys.maxsize) if line.strip()]
    summary = [line for line in lines if PYTEST_SUMMARY.match(line)]
    return (summary or lines)[-SUMMARY_LINES:]


def _environment() -> dict[str, str]:
    """Return an environment with all caches in the state folder and without access to a real AWS account."""
    return {
        **aws_environment(UNREACHABLE_ENDPOINT, STATE / "checks" / "sam"),
        "PYTHONPATH": os.pathsep.join(map(str, PACKAGES)),
        "RUFF_CACHE_DIR": str(CACHE / "ruff"),
    }
