"""A consumer in a separate process; each effect is a line in a file.

Its arguments are STORE URL FILE COUNT MESSAGE die|leave. It waits for a line on standard input, then processes the
messages m0 to m<COUNT - 1> in random order. With `die` it kills itself while it processes MESSAGE, before the effect.
With `leave` it redelivers until at most MESSAGE is not done, and prints the remaining ids.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

from grantwire_idempotency import IdempotentConsumer, Message, NoMetrics
from layers.idempotency.tests.integration.harness import HARNESSES

if __name__ == "__main__":
    name, url, file, count, special, ending = sys.argv[1:]
    (store,) = HARNESSES[name](url).stores(1)

    def process(message: Message) -> None:
        """Write one line for each effect."""
        if message.id == special and ending == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        with Path(file).open("a") as effects:
            effects.write(f"{message.id}\n")

    messages = [Message(f"m{number}") for number in range(int(count))]
    random.shuffle(messages)
    consumer = IdempotentConsumer(store, process, NoMetrics(), name="worker")
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()
    remaining = set(consumer.process_batch(messages))
    while remaining - {special}:
        remaining = set(consumer.process_batch([message for message in messages if message.id in remaining]))
    print("left:", *remaining)  # noqa: T201
