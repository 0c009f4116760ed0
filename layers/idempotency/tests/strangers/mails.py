"""Send each order's mail once, in a thread or in a coroutine; the decorated functions keep their types."""

import asyncio
from datetime import timedelta
from typing import assert_type

from grantwire_idempotency import AsyncMemoryStore, FailMode, MemoryStore, NoMetrics, current_claim, idempotent
from grantwire_idempotency.errors import RetryableError


def by_order(order: str, address: str = "") -> str:
    return f"mail:{order}"


@idempotent(MemoryStore(), key=by_order, name="mails", ttl=timedelta(days=2), fail_mode=FailMode.CLOSED)
def send(order: str, address: str = "shop@example.org") -> dict[str, str]:
    current_claim().extend(timedelta(minutes=1))
    return {"order": order, "to": address}


@idempotent(AsyncMemoryStore(), key=by_order, name="async-mails", metrics=NoMetrics())
async def send_async(order: str) -> int:
    await asyncio.sleep(0)
    return len(order)


def main() -> None:
    try:
        mail = send("o-1", address="ann@example.org")
    except RetryableError as error:
        assert_type(error.retry_after, int)
        raise
    assert_type(mail, dict[str, str])
    length = asyncio.run(send_async("o-1"))
    assert_type(length, int)
    print(mail["to"], send("o-1", "bob@example.org")["to"], length)


if __name__ == "__main__":
    main()
