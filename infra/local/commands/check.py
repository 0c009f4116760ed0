"""`make check`: linters, type checker, comparisons of generated files, and a short benchmark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from infra.local.deployment.sam import UNREACHABLE_ENDPOINT, aws_environment
from infra.local.errors import CommandError
from infra.local.paths import CACHE, CHECKOUT, PACKAGES, STATE
from infra.local.system import programs
from infra.local.system.processes import Launch
from infra.local.toolchain import browser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress

CHECKS = {
    "style": ("ruff", "check", "."),
    "format": ("ruff", "format", "--check", "."),
    "types": ("mypy",),
    "architecture": ("lint-imports", "--cache-dir", ".grantwire/cache/importlinter"),
    "events": ("python", "-m", "infra.local.toolchain.protobuf"),
    "template": ("cfn-lint", "template.yaml"),
    "SAM template": ("sam", "validate", "--lint", "--template-file", "template.yaml"),
    "locks": ("python", "-m", "infra.local.toolchain.requirements"),
    # Every section of `make bench` once, at its smallest size. It takes longer than the timeout of a test.
    "bench": ("pytest", "-q", "tests/bench/test_smoke.py"),
    # C14, C17: the wheel of the library in a fresh environment, and many checks by threads and forks.
    "library": ("python", "-m", "tests.support.library_proofs"),
    # T6: the console in a browser, on a deployed stack.
    "console": ("pytest", "-q", "tests/browser"),
    # C13: the library's coverage by its own tests, on one PostgreSQL.
    "coverage": (
        *("pytest", "-q", "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", "-k", "not pg15"),
        *("tests/unit/idempotency", "tests/integration/idempotency"),
        *(
            "--cov=grantwire_idempotency",
            "--cov-branch",
            "--cov-report=term-missing:skip-covered",
            "--cov-fail-under=80",
        ),
    ),
}


def check(arguments: Sequence[str], progress: Progress) -> int:
    """Run all checks, or the named ones, also after a failure; return 1 if any failed."""
    selected = {name: CHECKS[name] for name in CHECKS if not arguments or name in arguments}
    if "console" in selected and browser.find_browser() is None:
        progress.print_line(f"console: skipped. {browser.MISSING}")
        del selected["console"]
    failed = [name for name, command in selected.items() if not _passes(name, command, progress)]
    progress.print_line(f"\nFailed: {', '.join(failed)}" if failed else "\nAll checks passed.")
    return 1 if failed else 0


def _passes(name: str, command: Sequence[str], progress: Progress) -> bool:
    log = STATE / "checks" / f"{name.replace(' ', '-')}.log"
    log.unlink(missing_ok=True)
    launch = Launch(
        command=[programs.program_path(command[0]), *command[1:]],
        environment=_environment(),
        log=log,
        directory=CHECKOUT,
    )
    try:
        with progress.step(f"{name}: {' '.join(command)}"):
            log.parent.mkdir(parents=True, exist_ok=True)
            programs.run(launch, problem=f"{name} failed.")
    except CommandError as error:
        progress.print_error(error)
        return False
    return True


def _environment() -> dict[str, str]:
    """Return an environment with all caches in the state folder and without access to a real AWS account."""
    return {
        **aws_environment(UNREACHABLE_ENDPOINT, STATE / "checks" / "sam"),
        "PYTHONPATH": os.pathsep.join(map(str, PACKAGES)),
        "RUFF_CACHE_DIR": str(CACHE / "ruff"),
    }
