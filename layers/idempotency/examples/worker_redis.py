"""A plain worker: it takes jobs from a Redis list, with its keys in the same Redis.

Run it: REDIS_URL=redis://localhost:6379 python worker_redis.py

    mail for 2026-1
    mail for 2026-2
"""

import json
import os
from typing import Any

from grantwire_idempotency import RedisStore, connect_redis, entity_key, idempotent
from grantwire_idempotency.errors import RequestInProgressError

client = connect_redis(os.environ["REDIS_URL"])


@idempotent(RedisStore(client), key=entity_key("invoice", "invoice_id"), name="send-invoice")
def send_invoice(job: dict[str, Any]) -> str:
    print(f"mail for {job['invoice_id']}")
    return f"mail-{job['invoice_id']}"


def work(queue: str = "jobs") -> None:
    """Take jobs until the queue is empty. A job stays in the second list until it is done."""
    busy = f"{queue}:busy"
    while (text := client.lmove(queue, busy, "LEFT", "RIGHT")) is not None:
        try:
            send_invoice(json.loads(str(text)))
        except RequestInProgressError:  # another worker has it
            client.rpush(queue, str(text))
        client.lrem(busy, 1, str(text))


if __name__ == "__main__":
    for invoice in ("2026-1", "2026-2", "2026-1"):
        client.rpush("jobs", json.dumps({"invoice_id": invoice}))
    work()
