"""Virtual environments outside the checkout, with the versions of the lock, for tests of an installed wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

_PRINT_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def create_environment(folder: Path, packages: list[str], python: str | Path = sys.executable) -> Path:
    """Create an environment in a folder, install the packages at the versions of the lock, and return its Python."""
    lock = (ROOT / "requirements" / "development.txt").read_text()
    constraints = folder / "constraints.txt"
    # With its marker: a package can have another version on another Python.
    constraints.write_text("\n".join(re.findall(r"^[\w.\[\]-]+==[^\s\\]+(?: ; [^\\\n]+)?", lock, re.MULTILINE)))
    uv = Path(sys.executable).with_name("uv")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    installed = folder / "venv" / "bin" / "python"
    for command in (
        ["venv", "--quiet", "--python", str(python), str(folder / "venv")],
        ["pip", "install", "--quiet", "--python", str(installed), "-c", str(constraints), *packages],
    ):
        subprocess.run([uv, *command], cwd=folder, env=environment, check=True)
    return installed


def find_python(version: str) -> Path | None:
    """Return a Python of this version, such as "3.13", of the PATH or of pyenv, or None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [sys.executable, shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python")]
    return next((Path(one) for one in candidates if one is not None and _version_of(one) == version), None)


def _version_of(python: str | Path) -> str:
    result = subprocess.run([python, "-c", _PRINT_VERSION], capture_output=True, text=True, check=False)
    return result.stdout.strip()
