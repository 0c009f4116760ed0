"""A bridge in its own process, which kills itself at a crash point.

`python -m tests.support.workers.bridge_worker SECONDS [die-before-commit | die-before-ack]`
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from grantwire.notifications import bridge
from grantwire.notifications.inbox import record_events
from grantwire.wiring.workers.bridge_events import BridgeRuntime
from grantwire.workers.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grantwire.database import Connection
    from grantwire.events.decoding import Event


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


async def _die_before_ack(_messages: object) -> None:
    _die()


def _die_before_commit(connection: Connection, events: Sequence[Event]) -> list[str]:
    if not events:
        return record_events(connection, events)
    with connection.transaction():
        record_events(connection, events)
        _die()


if __name__ == "__main__":
    if "die-before-ack" in sys.argv:
        bridge.acknowledge = _die_before_ack  # type: ignore[attr-defined,assignment]  # the crash point
    if "die-before-commit" in sys.argv:
        bridge.record_events = _die_before_commit  # type: ignore[assignment,attr-defined]  # the crash point
    runtime = BridgeRuntime.build(os.environ)
    print(json.dumps(runtime.run(Budget(time.monotonic() + float(sys.argv[1]), until_idle=True))))  # noqa: T201
    runtime.close()
