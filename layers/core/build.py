"""Build a layer for `sam build`: the locked packages for one target and our own, compiled to byte code.

SAM's own builder includes source only, and /opt is read-only. Each cold start would compile every import, which takes
as long as the rest of the start (ADR 0023). Byte code belongs to one version of Python, so that version must run this.

There are two: `core`, which every function has, and `credentials`, which adds the package that signs for a .creds file
of NATS. A target is a folder in `targets`, such as python3.13-arm64. Its platform.txt names the newest platform of
wheels that the runtime can load: Lambda's Python 3.11 has glibc 2.26, later ones 2.34, of which 2.28 suffices and
laptops have it.
"""

from __future__ import annotations

import argparse
import compileall
import os
import py_compile
import re
import shutil
import subprocess
import sys
from pathlib import Path

LAYERS = Path(__file__).resolve().parents[1]
TARGETS = LAYERS / "core" / "targets"
REQUIREMENTS = {
    "core": LAYERS / "core" / "python" / "requirements.txt",
    "credentials": LAYERS / "credentials" / "requirements.txt",
}

# Our own packages in the layer `core`: the service and the idempotency library.
SOURCES = (LAYERS / "core" / "python", LAYERS / "idempotency" / "src")

# Files that are not needed at run time: sources of compiled modules, and type stubs.
UNNEEDED_PATTERNS = ("*.c", "*.pxd", "*.pyi", "*.pyx")
_OLDEST_GLIBC_MINOR = 5


def main(arguments: list[str]) -> None:
    """Write a layer's content to the folder that becomes /opt/python."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("layer", choices=REQUIREMENTS)
    parser.add_argument("target", choices=sorted(folder.name for folder in TARGETS.iterdir()))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source-only", action="store_true", help="do not compile; works with every Python")
    options = parser.parse_args(arguments)
    version = options.target.partition("-")[0].removeprefix("python")
    own_version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if own_version != version and not options.source_only:
        sys.exit(f"The layer for Python {version} must be built with it, not with {own_version}: byte code differs.")
    options.folder.mkdir(parents=True, exist_ok=True)
    _install(REQUIREMENTS[options.layer], options.folder, version, _platforms(options.target))
    for source in SOURCES if options.layer == "core" else ():
        ignored = shutil.ignore_patterns("__pycache__", "requirements.in", "bin")
        shutil.copytree(source, options.folder, dirs_exist_ok=True, ignore=ignored)
    for pattern in UNNEEDED_PATTERNS:
        for file in options.folder.rglob(pattern):
            file.unlink()
    if not options.source_only:
        _compile(options.folder)


def _platforms(target: str) -> list[str]:
    """Return the platforms of a target, newest first, or exit with the reason why there are none."""
    text = (TARGETS / target / "platform.txt").read_text().strip()
    newest = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", text)
    if newest is None:
        sys.exit(text)
    minors, machine = range(int(newest[1]), _OLDEST_GLIBC_MINOR - 1, -1), newest[2]
    return [*(f"manylinux_2_{minor}_{machine}" for minor in minors), f"manylinux2014_{machine}"]


def _install(requirements: Path, folder: Path, version: str, platforms: list[str]) -> None:
    options = ["--disable-pip-version-check", "--quiet", "--no-compile", "--only-binary=:all:"]
    platform = [part for name in platforms for part in ("--platform", name)]
    python = ["--implementation=cp", f"--python-version={version}", *platform, "--target", str(folder)]
    packages = ["--require-hashes", "--no-deps", "--requirement", str(requirements)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *python, *packages], check=True)  # noqa: S603 - our own interpreter
    shutil.rmtree(folder / "bin", ignore_errors=True)  # command-line scripts, which contain this machine's paths


def _compile(folder: Path) -> None:
    """Compile all modules, without the check of the source's date.

    The deployment changes the dates of files, and source and byte code always come from the same build.
    """
    # Write next to the source. The processes of compileall inherit the variable, not the attribute, since Python 3.12.
    sys.pycache_prefix = None
    os.environ.pop("PYTHONPYCACHEPREFIX", None)
    for path in sorted(folder.iterdir()):
        if not (path.is_dir() or path.suffix == ".py"):
            continue
        compile_path = compileall.compile_dir if path.is_dir() else compileall.compile_file
        options = {"workers": os.cpu_count() or 1} if path.is_dir() else {}
        if not compile_path(
            str(path),
            quiet=1,
            stripdir=str(folder),
            prependdir="/opt/python",
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            **options,
        ):
            sys.exit(f"Compiling {path.name} failed.")


if __name__ == "__main__":
    main(sys.argv[1:])
