"""Invokes functions by their handlers, in a process whose environment is the test's to choose."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.support.paths import ROOT
from tests.support.run import program_environment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta
    from typing import Self

UNTIL_IDLE = {"budget": "20s", "until": "idle"}


class Functions:
    """A process that runs functions; `lines` is all that they have written, each line of JSON parsed."""

    def __init__(self, environ: Mapping[str, str], *, clock_ahead: timedelta | None = None) -> None:
        self.lines: list[dict[str, Any]] = []
        shift = {} if clock_ahead is None else {"CLOCK_AHEAD_SECONDS": str(clock_ahead.total_seconds())}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.workers.invoked_functions"],
            env={**program_environment(), **environ, **shift},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        """The process imports a function when it is first invoked."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it, in whatever state it is."""
        self._process.kill()
        self._process.communicate()

    def invoke(self, name: str, event: Mapping[str, Any]) -> Any:
        """What the handler returns; AssertionError if it raises."""
        answer = self._ask(name, event)
        assert "error" not in answer, f"{name} raised {answer['error']}"
        return answer["result"]

    def fail(self, name: str, event: Mapping[str, Any]) -> str:
        """What the handler raises; AssertionError if it returns."""
        answer = self._ask(name, event)
        assert "result" not in answer, f"{name} returned {answer['result']}"
        return str(answer["error"])

    def _ask(self, name: str, event: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"function": name, "event": event}) + "\n")
        self._process.stdin.flush()
        for text in self._process.stdout:
            line: dict[str, Any] = json.loads(text)
            if line.get("invoked") == name:
                return line
            self.lines.append(line)
        raise AssertionError(f"the process ended while it ran {name}")
