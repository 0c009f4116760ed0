"""Invokes the handlers of functions in a subprocess with an environment that the test chooses."""

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
    """Subprocess that runs functions; `lines` has every line that they wrote to standard output, parsed as JSON."""

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
        """Do nothing: the subprocess imports a function when it is first invoked."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the subprocess."""
        self._process.kill()
        self._process.communicate()

    def invoke(self, name: str, event: Mapping[str, Any]) -> Any:
        """Invoke a function and return its result. Raises AssertionError if the handler raises."""
        outcome = self._run(name, event)
        assert "error" not in outcome, f"{name} raised {outcome['error']}"
        return outcome["result"]

    def invoke_expecting_error(self, name: str, event: Mapping[str, Any]) -> str:
        """Invoke a function and return the error that it raises. Raises AssertionError if the handler returns."""
        outcome = self._run(name, event)
        assert "result" not in outcome, f"{name} returned {outcome['result']}"
        return str(outcome["error"])

    def _run(self, name: str, event: Mapping[str, Any]) -> dict[str, Any]:
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
