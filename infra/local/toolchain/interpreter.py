"""The check of the Python version. Any Python 3 must be able to parse this module."""

import importlib.util
import platform
import sys

OLDEST, NEWEST = (3, 11), (3, 14)  # the versions with a Lambda runtime for which every locked package has a wheel
RANGE = "Python 3.11 to 3.14"
HINT = (
    "Debian, Ubuntu: apt install python3 python3-venv - macOS: brew install python@3.13\n"
    "If it is installed in another place: make PYTHON=/path/to/python3.13 ..."
)


def is_supported() -> bool:
    """Return whether this Python has one of the versions."""
    return OLDEST <= sys.version_info[:2] <= NEWEST


def check() -> None:
    """Exit with an error that names the package to install, unless this Python can create the environments."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if not is_supported():
        sys.exit(f"Grantwire needs {RANGE}; this is {platform.python_version()} ({sys.executable}).\n{HINT}")
    if missing:
        sys.exit(f"Python's {' and '.join(missing)} module is missing ({sys.executable}).\n{HINT}")
