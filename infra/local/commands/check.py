"""`make check`: everything that can be said about the code without running it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from infra.local.deployment.sam import NOWHERE, aws_environment
from infra.local.errors import CommandError
from infra.local.paths import CACHE, CHECKOUT, PACKAGES, STATE
from infra.local.system import programs
from infra.local.system.processes import Launch

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
    # Every section of `make bench` once, with the least effort: it takes longer than a test may.
    "bench": ("pytest", "-q", "tests/bench/test_smoke.py"),
    # C13: what the library's own tests reach of it, on one PostgreSQL.
    "coverage": (
        *("pytest", "-q", "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", "-k", "not pg15"),
        *("tests/unit/idempotency", "tests/integration/idempotency", "tests/integration/examples"),
        *(
            "--cov=grantwire_idempotency",
            "--cov-branch",
            "--cov-report=term-missing:skip-covered",
            "--cov-fail-under=80",
        ),
    ),
}


def check(arguments: Sequence[str], progress: Progress) -> int:
    """Run every check, or those named, even after one failed; explain each failure."""
    chosen = {name: CHECKS[name] for name in CHECKS if not arguments or name in arguments}
    failed = [name for name, command in chosen.items() if not _passes(name, command, progress)]
    progress.say(f"\nFailed: {', '.join(failed)}" if failed else "\nAll checks passed.")
    return 1 if failed else 0


def _passes(name: str, command: Sequence[str], progress: Progress) -> bool:
    log = STATE / "checks" / f"{name.replace(' ', '-')}.log"
    log.unlink(missing_ok=True)
    launch = Launch(
        command=[programs.installed(command[0]), *command[1:]],
        environment=_environment(),
        log=log,
        directory=CHECKOUT,
    )
    try:
        with progress.step(f"{name}: {' '.join(command)}"):
            log.parent.mkdir(parents=True, exist_ok=True)
            programs.run(launch, problem=f"{name} failed.")
    except CommandError as error:
        progress.explain(error)
        return False
    return True


def _environment() -> dict[str, str]:
    """Keep every tool's cache under the state folder, and every tool away from a real account."""
    return {
        **aws_environment(NOWHERE, STATE / "checks" / "sam"),
        "PYTHONPATH": os.pathsep.join(map(str, PACKAGES)),
        "RUFF_CACHE_DIR": str(CACHE / "ruff"),
    }
