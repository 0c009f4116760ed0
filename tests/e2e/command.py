"""The installed grantwire command, run as a process of its own with the address and the token only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from infra.local.system.processes import wait_for

PROGRAM = Path(sys.executable).with_name("grantwire")


class Grantwire(NamedTuple):
    """The command with an installation and a home folder, which is also its current folder."""

    api_url: str
    token: str
    home: Path

    def __call__(self, *arguments: str, **variables: str) -> tuple[int, Any]:
        """Run the command with --json; return its exit code, and its result or its error."""
        result = subprocess.run(
            [PROGRAM, *arguments, "--json"],
            env=self.environment | variables,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )
        text = result.stdout or result.stderr.strip().splitlines()[-1]
        return result.returncode, json.loads(text)

    def result(self, *arguments: str) -> Any:
        """Run the command with --json; return its result, and fail if the exit code is not 0."""
        code, result = self(*arguments)
        assert code == 0, result
        return result

    def wait_for_state(self, purchase_id: str, state: str, seconds: float) -> Any:
        """Trace a purchase until its last change has a state, and return the trace."""

        def traced() -> Any:
            found = self.result("trace", "--purchase-id", purchase_id)
            return found if found["changes"] and found["changes"][-1]["state"] == state else None

        found = wait_for(traced, seconds, every=0.1)
        assert found, f"{purchase_id} is not {state} after {seconds} s"
        return found

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the command without waiting for its end."""
        return subprocess.Popen(
            [PROGRAM, *arguments],
            env=self.environment,
            cwd=self.home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the process."""
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "GRANTWIRE_API": self.api_url,
            "GRANTWIRE_TOKEN": self.token,
        }
