"""A consumer in a process of its own, whose effects are lines of a file.

`python -m tests.support.workers.idempotent_consumer STORE URL FILE COUNT MESSAGE die|leave` waits for a line on
standard input, then processes messages m0 to m<COUNT - 1> in an order of its own. Either it is killed in the middle of
MESSAGE, before the effect; or it has them delivered until all but MESSAGE are done, and says what is left.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

from grantwire.idempotency import IdempotentConsumer, Message, NoMetrics
from tests.integration.idempotency.harness import HARNESSES

if __name__ == "__main__":
    name, url, file, count, special, ending = sys.argv[1:]
    (store,) = HARNESSES[name](url).stores(1)

    def process(message: Message) -> None:
        """One line for each time that a message has its effect."""
        if message.id == special and ending == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        with Path(file).open("a") as effects:
            effects.write(f"{message.id}\n")

    messages = [Message(f"m{number}") for number in range(int(count))]
    random.shuffle(messages)
    consumer = IdempotentConsumer(store, process, NoMetrics(), name="worker")
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()
    left = set(consumer.process_batch(messages))
    while left - {special}:
        left = set(consumer.process_batch([message for message in messages if message.id in left]))
    print("left:", *left)  # noqa: T201
