"""Complain at once about a Python that cannot do it; so this must be readable for any Python 3."""

import importlib.util
import platform
import sys

WANTED = (3, 11)  # what the functions' binary packages are made for
HINT = (
    "Debian, Ubuntu: apt install python3.11-venv - macOS: brew install python@3.11\n"
    "Installed elsewhere: make PYTHON=/path/to/python3.11 ..."
)


def check() -> None:
    """Exit with the package to install, unless this is the right Python with what virtual environments need."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if sys.version_info[:2] != WANTED:
        wanted = ".".join(map(str, WANTED))
        sys.exit(f"Grantwire needs Python {wanted}; this is {platform.python_version()} ({sys.executable}).\n{HINT}")
    if missing:
        sys.exit(f"Python's {' and '.join(missing)} module is missing ({sys.executable}).\n{HINT}")
