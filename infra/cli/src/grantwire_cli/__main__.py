"""`grantwire`, and `python -m grantwire_cli`."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from grantwire_cli.app import build


def main() -> None:
    """Run the command that the arguments name, and exit with its code. All output is UTF-8, whatever the locale."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the caller has closed it
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # until the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    build()(prog_name="grantwire")


if __name__ == "__main__":
    main()
