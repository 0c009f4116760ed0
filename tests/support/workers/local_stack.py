"""`make up` of a local stack without functions and emulator, whose build takes half a minute. It is all of the rest.

Where the functions would be deployed, it prints the process ids of the servers and waits for the file `go`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from infra.local import progress
from infra.local.servers.postgres import UNSAFE
from infra.local.stack.embedded import EmbeddedStack
from infra.local.system.processes import wait_until

if TYPE_CHECKING:
    from infra.local.servers.server import Server


class StackWithoutFunctions(EmbeddedStack):
    """PostgreSQL and NATS, with the database and the streams."""

    api_url = "http://127.0.0.1:9"

    @property
    def servers(self) -> tuple[Server, ...]:
        """The servers in the order in which they start."""
        return (self.postgres, self.nats)

    def _deploy(self) -> None:
        self.progress.print_line(json.dumps({server.name: server.pid for server in self.servers}))
        if not wait_until((self.state / "go").exists, 100):
            sys.exit("go was not written")

    def _wait_until_healthy(self) -> None:
        pass

    def _start_workers(self) -> None:
        pass


if __name__ == "__main__":
    progress.ANNOUNCE_AFTER_SECONDS = 0.0
    StackWithoutFunctions(Path(sys.argv[1]), database_settings=UNSAFE).up()
