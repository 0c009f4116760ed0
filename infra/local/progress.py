"""Progress lines, results and errors of a command on the terminal."""

from __future__ import annotations

import contextlib
import shutil
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


class Step:
    """A step that runs."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.ended = threading.Event()
        self._started_at = time.monotonic()

    def describe(self, width: int | None = None) -> str:
        """Return the title, shortened to fit into `width`, and how long the step has run."""
        duration = f" ({time.monotonic() - self._started_at:.1f} s)"
        return (self.title if width is None else self.title[: max(0, width - len(duration))]) + duration


class Progress:
    """Prints steps with their durations; on a terminal, a line shows the running steps and counts their seconds."""

    def __init__(self, output: TextIO | None = None) -> None:
        self._output = output or sys.stdout
        self._live = self._output.isatty()
        self._running: dict[Step, threading.Thread] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print a step while it runs, then whether it succeeded."""
        step = self.begin_step(title)
        succeeded = False
        try:
            yield
            succeeded = True
        finally:
            self.end_step(step, succeeded=succeeded)

    def begin_step(self, title: str) -> Step:
        """Print a step while it runs, until `end_step`. Steps may run at the same time."""
        step = Step(title)
        ticker = threading.Thread(target=self._tick, args=(step,), daemon=True)
        with self._lock:
            self._running[step] = ticker
        ticker.start()
        return step

    def end_step(self, step: Step, *, succeeded: bool) -> None:
        """Print whether a step succeeded, and how long it took."""
        step.ended.set()
        with self._lock:
            ticker = self._running.pop(step)
        ticker.join()
        self._write(f"{'✓' if succeeded else '✗'} {step.describe()}", end="\n")

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

    def _tick(self, step: Step) -> None:
        if not self._live:
            if not step.ended.wait(ANNOUNCE_AFTER_SECONDS):
                self._write(f"… {step.title}", end="\n")
            return
        while not step.ended.wait(0.1):
            with self._lock:
                running = list(self._running)
            # A line that wraps is not erased completely.
            width = (shutil.get_terminal_size().columns - len("… ")) // max(1, len(running)) - len(", ")
            self._write(f"… {', '.join(other.describe(width) for other in running)}", end="")

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
