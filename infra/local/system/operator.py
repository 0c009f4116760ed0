"""Who runs a command on this machine, for the record of administrative actions."""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def command_source(command: str) -> str:
    """Return where a command came from: this machine and the `make` command."""
    return f"command line of {socket.gethostname()}, make {command}"


def add_operator_options(parser: argparse.ArgumentParser) -> None:
    """Add the options `--actor` and `--reason`, which are recorded with the action."""
    default = f"{getpass.getuser()}@{socket.gethostname()}"
    parser.add_argument("--reason", metavar="TEXT", help="why, which is recorded; required for every change")
    parser.add_argument(
        "--actor", metavar="NAME", default=default, help="who acts, which is recorded (default: your account and host)"
    )
