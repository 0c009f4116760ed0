"""Starts relays one after the other, each in a child process that one event kills.

POISON is the aggregate whose event kills the process that is about to publish it. CRASHES is the number of child
processes. Each uses a later time than the one before, so that the leases of the earlier ones have expired.
"""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from unittest import mock

from grantwire.outbox.headers import build_headers
from tests.support.workers.relay_support import drain

if TYPE_CHECKING:
    from grantwire.outbox.store import ClaimedEvent


def main() -> None:
    """Run the child processes and print the signal that ended each, 0 for none."""
    started = datetime.now(UTC)
    for number in range(int(os.environ["CRASHES"])):
        child = os.fork()
        if child == 0:
            _run_relay(started + number * timedelta(minutes=10))
        _, status = os.waitpid(child, 0)
        print(-os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the parent reads it


def _run_relay(now: datetime) -> None:
    def kill_or_build_headers(event: ClaimedEvent) -> dict[str, str]:
        if event.aggregate_key == os.environ["POISON"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return build_headers(event)

    with mock.patch("grantwire.outbox.publication.build_headers", kill_or_build_headers):
        drain(os.environ, now)
    os._exit(0)


if __name__ == "__main__":
    main()
