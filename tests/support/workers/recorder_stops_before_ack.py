"""A recorder that stands still between its commit and its acknowledgement, to be killed there."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from grantwire.jetstream.message import Message
from grantwire.runtime.recorder import RecorderRuntime
from grantwire.workers.budget import Budget


async def _stand_still(_message: Message) -> None:
    print("committed", flush=True)  # noqa: T201 - what the test waits for
    await asyncio.sleep(60)


if __name__ == "__main__":
    Message.ack = _stand_still  # type: ignore[method-assign, assignment]
    RecorderRuntime.build(os.environ).run(Budget(time.monotonic() + 60, until_idle=True))
    sys.exit("nobody killed it")
