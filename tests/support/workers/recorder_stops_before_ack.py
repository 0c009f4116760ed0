"""A recorder that hangs between its commit and its acknowledgement, until the test kills it."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from grantwire.jetstream.message import Message
from grantwire.wiring.workers.record_advisories import RecorderRuntime
from grantwire.workers.budget import Budget


async def _hang(_message: Message) -> None:
    print("committed", flush=True)  # noqa: T201 - the test waits for this line
    await asyncio.sleep(60)


if __name__ == "__main__":
    Message.ack = _hang  # type: ignore[method-assign, assignment]
    RecorderRuntime.build(os.environ).run(Budget(time.monotonic() + 60, until_idle=True))
    sys.exit("the test did not kill this process")
