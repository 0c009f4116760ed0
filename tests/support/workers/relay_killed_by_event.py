"""A relay that one event kills, again and again, as a process of its own.

POISON is the aggregate whose event ends the process that is about to publish it. Each of CRASHES children works at a
time of its own, so far from the one before that its leases have run out.
"""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from unittest import mock

from grantwire.outbox.encoding import headers_of
from tests.support.workers.relay_support import drain

if TYPE_CHECKING:
    from grantwire.outbox.store import ClaimedEvent


def main() -> None:
    """One child after the other."""
    started = datetime.now(UTC)
    for number in range(int(os.environ["CRASHES"])):
        child = os.fork()
        if child == 0:
            _work(started + number * timedelta(minutes=10))
        _, status = os.waitpid(child, 0)
        print(-os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the parent reads it


def _work(now: datetime) -> None:
    def deadly(event: ClaimedEvent) -> dict[str, str]:
        if event.aggregate_key == os.environ["POISON"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return headers_of(event)

    with mock.patch("grantwire.outbox.publication.headers_of", deadly):
        drain(os.environ, now)
    os._exit(0)


if __name__ == "__main__":
    main()
