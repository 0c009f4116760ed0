"""Tell a person what is being done, how long it took, and why it failed."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infra.local.errors import CommandError

TAIL = 20
PATIENCE = 2.0  # without a terminal, a step is announced only if it takes longer than this


class Progress:
    """Lines of steps with their times; on a terminal, the running step counts its seconds."""

    def __init__(self, output: TextIO | None = None) -> None:
        self._output = output or sys.stdout
        self._live = self._output.isatty()

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show one step while it runs, and how it ended."""
        began = time.monotonic()
        ended = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(title, began, ended), daemon=True)
        ticker.start()
        outcome = "failed"
        try:
            yield
            outcome = "done"
        finally:
            ended.set()
            ticker.join()
            mark = "✓" if outcome == "done" else "✗"
            self._write(f"{mark} {title} ({_seconds(began)})", end="\n")

    def say(self, text: str = "") -> None:
        """Print a line as it is."""
        print(text, file=self._output, flush=True)

    def explain(self, error: CommandError) -> None:
        """Print what went wrong, the end of the log that explains it, and what to do.

        To standard error: what `make env` prints on standard output is run by a shell.
        """
        lines = [f"\n{error}"]
        if error.log is not None:
            lines += [f"    {line}" for line in tail(error.log, TAIL)]
            lines += [f"The whole log: {error.log}"]
        lines += [error.hint] if error.hint else []
        print("\n".join(lines), file=sys.stderr, flush=True)

    def _tick(self, title: str, began: float, ended: threading.Event) -> None:
        if not self._live:
            if not ended.wait(PATIENCE):
                self._write(f"… {title}", end="\n")
            return
        while not ended.wait(0.1):
            self._write(f"… {title} ({_seconds(began)})", end="")

    def _write(self, text: str, end: str) -> None:
        erase = "\r\x1b[2K" if self._live else ""
        print(f"{erase}{text}", file=self._output, end=end, flush=True)


def tail(log: Path, count: int) -> list[str]:
    """Give the last lines of a log; none if there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 200 * 1024))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def _seconds(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"
