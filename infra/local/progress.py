"""Progress lines, results and errors of a command on the terminal."""

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

LOG_TAIL_LINES = 20
ANNOUNCE_AFTER_SECONDS = 2.0  # without a terminal, a shorter step is not announced
MAX_TAIL_BYTES = 200 * 1024


class Progress:
    """Prints steps with their durations; on a terminal, the running step counts its seconds."""

    def __init__(self, output: TextIO | None = None) -> None:
        self._output = output or sys.stdout
        self._live = self._output.isatty()

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print a step while it runs, then whether it succeeded."""
        started_at = time.monotonic()
        ended = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(title, started_at, ended), daemon=True)
        ticker.start()
        outcome = "failed"
        try:
            yield
            outcome = "done"
        finally:
            ended.set()
            ticker.join()
            mark = "✓" if outcome == "done" else "✗"
            self._write(f"{mark} {title} ({_seconds_since(started_at)})", end="\n")

    def print_line(self, text: str = "") -> None:
        """Print a line."""
        print(text, file=self._output, flush=True)

    def print_error(self, error: CommandError) -> None:
        """Print what failed, the end of the log, and what to try.

        It goes to standard error, because a shell runs what `make env` prints on standard output.
        """
        lines = [f"\n{error}"]
        if error.log is not None:
            lines += [f"    {line}" for line in tail(error.log, LOG_TAIL_LINES)]
            lines += [f"Full log: {error.log}"]
        lines += [error.hint] if error.hint else []
        print("\n".join(lines), file=sys.stderr, flush=True)

    def _tick(self, title: str, started_at: float, ended: threading.Event) -> None:
        if not self._live:
            if not ended.wait(ANNOUNCE_AFTER_SECONDS):
                self._write(f"… {title}", end="\n")
            return
        while not ended.wait(0.1):
            self._write(f"… {title} ({_seconds_since(started_at)})", end="")

    def _write(self, text: str, end: str) -> None:
        erase = "\r\x1b[2K" if self._live else ""
        print(f"{erase}{text}", file=self._output, end=end, flush=True)


def tail(log: Path, count: int) -> list[str]:
    """Return the last lines of a log, or an empty list if there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - MAX_TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def _seconds_since(started_at: float) -> str:
    return f"{time.monotonic() - started_at:.1f} s"
