"""The check of the Python version. Any Python 3 must be able to parse this module."""

import importlib.util
import platform
import sys

REQUIRED_VERSION = (3, 11)  # the version of the functions' binary packages
HINT = (
    "Debian, Ubuntu: apt install python3.11-venv - macOS: brew install python@3.11\n"
    "If it is installed in another place: make PYTHON=/path/to/python3.11 ..."
)


def check() -> None:
    """Exit with an error that names the package to install, unless this Python can create the environments."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if sys.version_info[:2] != REQUIRED_VERSION:
        required = ".".join(map(str, REQUIRED_VERSION))
        sys.exit(f"Grantwire needs Python {required}; this is {platform.python_version()} ({sys.executable}).\n{HINT}")
    if missing:
        sys.exit(f"Python's {' and '.join(missing)} module is missing ({sys.executable}).\n{HINT}")
