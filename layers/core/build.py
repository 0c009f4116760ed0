"""Builds the layer, for `sam build`: Lambda's own packages at their locked versions, our code, and both compiled.

SAM's own builder ships source only, and /opt cannot be written to: each cold start would compile all that it imports,
which takes as long as everything else together (ADR 0023). Needs Python 3.11 with pip: Lambda's reads its byte code.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent / "python"

# What glibc 2.26, that of Lambda's Amazon Linux 2, can load.
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(26, 4, -1)] + ["manylinux2014_x86_64"]

# For other functions than ours; its byte code would be larger than what it saves them.
SOURCE_ONLY = {"redis"}

# What no program needs: sources that were compiled to machine code, and types.
SUPERFLUOUS = ("*.c", "*.pxd", "*.pyi", "*.pyx")


def main(target: Path) -> None:
    """Fill the folder that becomes /opt/python."""
    target.mkdir(parents=True, exist_ok=True)
    _install(target)
    shutil.copytree(
        HERE, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "requirements.in", "bin")
    )
    for pattern in SUPERFLUOUS:
        for file in target.rglob(pattern):
            file.unlink()
    _compile(target)


def _install(target: Path) -> None:
    where = [part for platform in PLATFORMS for part in ("--platform", platform)]
    what = ["--require-hashes", "--no-deps", "--only-binary=:all:", "--requirement", str(HERE / "requirements.txt")]
    how = ["--disable-pip-version-check", "--quiet", "--no-compile", "--implementation=cp", "--python-version=3.11"]
    subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "pip", "install", *how, *where, *what, "--target", str(target)], check=True
    )
    shutil.rmtree(target / "bin", ignore_errors=True)  # commands of packages, with this machine's paths in them


def _compile(target: Path) -> None:
    """Without a date to compare: files get new ones on their way, and the source is never there without its code."""
    sys.pycache_prefix = None  # beside the source, whatever the environment says
    for path in sorted(target.iterdir()):
        if path.name in SOURCE_ONLY or not (path.is_dir() or path.suffix == ".py"):
            continue
        compile_path = compileall.compile_dir if path.is_dir() else compileall.compile_file
        how = {"workers": os.cpu_count() or 1} if path.is_dir() else {}
        if not compile_path(
            str(path),
            quiet=1,
            stripdir=str(target),
            prependdir="/opt/python",
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            **how,
        ):
            sys.exit(f"{path.name} cannot be compiled.")


if __name__ == "__main__":
    if sys.version_info[:2] != (3, 11):
        sys.exit("The layer is built with Python 3.11: Lambda's cannot read the byte code of another one.")
    main(Path(sys.argv[1]))
