"""The grantwire command as a program of its own, in a pipe and on a pseudo terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.fake_api import TOKEN

if TYPE_CHECKING:
    from tests.support.fake_api import FakeApi

PROGRAM = (sys.executable, "-m", "grantwire_cli")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def environment(api: FakeApi, **others: str) -> dict[str, str]:
    """Return the environment of the command."""
    selected = {"GRANTWIRE_API": api.url, "GRANTWIRE_TOKEN": TOKEN, "TERM": "xterm-256color", "COLUMNS": "120"}
    return {**os.environ, **selected, **others}


def in_pipe(api: FakeApi, *arguments: str, **others: str) -> tuple[int, str, str]:
    """Run the command in pipes; return its exit code, its results and its messages."""
    result = subprocess.run(
        [*PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        env=environment(api, **others),
        check=False,
    )
    return result.returncode, result.stdout, result.stderr


def on_terminal(
    api: FakeApi, *arguments: str, typed: str = "", messages: bool = True, **others: str
) -> tuple[int, str]:
    """Run the command on a pseudo terminal; return its exit code and what it printed, on request without messages."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=follower,
        stdout=follower,
        stderr=follower if messages else subprocess.DEVNULL,
        env=environment(api, **others),
    ) as process:
        os.close(follower)
        os.write(leader, typed.encode())
        text = b""
        while True:
            try:
                block = os.read(leader, 4096)
            except OSError:  # the other side is closed
                break
            if not block:
                break
            text += block
        os.close(leader)
    return process.returncode, text.decode()


def without_escapes(text: str) -> str:
    """Return what a terminal shows: without colours, and without white space at the ends of lines."""
    return "".join(f"{line.rstrip()}\n" for line in _ESCAPES.sub("", text).splitlines())
