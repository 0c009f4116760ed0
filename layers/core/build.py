"""Build the layer for `sam build`: the locked packages for Lambda's platform and our own, compiled to byte code.

SAM's own builder includes source only, and /opt is read-only. Each cold start would compile every import, which takes
as long as the rest of the start (ADR 0023). It needs Python 3.11 with pip, because Lambda reads its byte code.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

LAYERS = Path(__file__).resolve().parents[1]
REQUIREMENTS = LAYERS / "core" / "python" / "requirements.txt"

# Our own packages: the service and the idempotency library.
SOURCES = (LAYERS / "core" / "python", LAYERS / "idempotency" / "src")

# The platforms that glibc 2.26 of Lambda's Amazon Linux 2 can load.
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(26, 4, -1)] + ["manylinux2014_x86_64"]

# Files that are not needed at run time: sources of compiled modules, and type stubs.
UNNEEDED_PATTERNS = ("*.c", "*.pxd", "*.pyi", "*.pyx")


def main(target: Path) -> None:
    """Write the layer's content to the folder that becomes /opt/python."""
    target.mkdir(parents=True, exist_ok=True)
    _install(target)
    for source in SOURCES:
        shutil.copytree(
            source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "requirements.in", "bin")
        )
    for pattern in UNNEEDED_PATTERNS:
        for file in target.rglob(pattern):
            file.unlink()
    _compile(target)


def _install(target: Path) -> None:
    platforms = [part for platform in PLATFORMS for part in ("--platform", platform)]
    packages = ["--require-hashes", "--no-deps", "--only-binary=:all:", "--requirement", str(REQUIREMENTS)]
    options = ["--disable-pip-version-check", "--quiet", "--no-compile", "--implementation=cp", "--python-version=3.11"]
    subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "pip", "install", *options, *platforms, *packages, "--target", str(target)], check=True
    )
    shutil.rmtree(target / "bin", ignore_errors=True)  # command-line scripts, which contain this machine's paths


def _compile(target: Path) -> None:
    """Compile all modules, without the check of the source's date.

    The deployment changes the dates of files, and source and byte code always come from the same build.
    """
    sys.pycache_prefix = None  # write next to the source, also if PYTHONPYCACHEPREFIX is set
    for path in sorted(target.iterdir()):
        if not (path.is_dir() or path.suffix == ".py"):
            continue
        compile_path = compileall.compile_dir if path.is_dir() else compileall.compile_file
        options = {"workers": os.cpu_count() or 1} if path.is_dir() else {}
        if not compile_path(
            str(path),
            quiet=1,
            stripdir=str(target),
            prependdir="/opt/python",
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            **options,
        ):
            sys.exit(f"Compiling {path.name} failed.")


if __name__ == "__main__":
    if sys.version_info[:2] != (3, 11):
        sys.exit("The layer must be built with Python 3.11, because Lambda's Python reads only its own byte code.")
    main(Path(sys.argv[1]))
