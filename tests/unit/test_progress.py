"""The line of the running steps on a terminal."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from infra.local.progress import Progress
from infra.local.system.processes import wait_until

if TYPE_CHECKING:
    import pytest


class Terminal(io.StringIO):
    """An output that says that it is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def test_running_steps_share_one_line_that_does_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ended step keeps a line of its own, with its whole title."""
    monkeypatch.setenv("COLUMNS", "40")
    output = Terminal()
    progress = Progress(output)
    long, short = progress.begin_step("first: " + "word " * 20), progress.begin_step("second")
    assert wait_until(lambda: "… first" in output.getvalue() and ", second (" in output.getvalue(), 30)
    progress.end_step(short, succeeded=False)
    progress.end_step(long, succeeded=True)
    lines = re.split(r"\r\x1b\[2K", output.getvalue())
    ended = [line for line in lines if line.endswith("\n")]
    assert [line[:9] for line in ended] == ["✗ second ", "✓ first: "]
    assert "word " * 20 in ended[1]
    assert max(len(line) for line in lines if line.startswith("…")) <= 40
