"""A bridge in a process of its own, to be killed: `python -m tests.workers.bridge_worker SECONDS [die-before-ack]`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from grantwire.budget import Budget
from grantwire.notifications.bridge import Bridge
from grantwire.runtime.bridge import BridgeRuntime

if TYPE_CHECKING:
    from collections.abc import Sequence


async def _die(_bridge: Bridge, _messages: Sequence[Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if "die-before-ack" in sys.argv:
        Bridge._acknowledge = _die  # type: ignore[assignment,method-assign]  # noqa: SLF001 - the crash point
    runtime = BridgeRuntime.build(os.environ)
    print(json.dumps(runtime.run(Budget(time.monotonic() + float(sys.argv[1]), until_idle=True))))  # noqa: T201
    runtime.close()
