"""Send each order's mail once, in a thread or in a coroutine; the decorated functions keep their types."""

import asyncio
from datetime import timedelta
from typing import Any, assert_type

from grantwire_idempotency import (
    AsyncMemoryStore,
    FailMode,
    MemoryStore,
    NoMetrics,
    argument,
    current_async_claim,
    current_claim,
    disabled,
    idempotent,
)
from grantwire_idempotency.errors import KeyConflictError, RetryableError


@idempotent(
    MemoryStore(),
    key=argument("order"),
    content=argument("address"),
    name="mail:order",
    ttl=timedelta(days=2),
    fail_mode=FailMode.CLOSED,
)
def send(order: str, address: str = "shop@example.org") -> dict[str, str]:
    current_claim().extend(timedelta(minutes=1))
    return {"order": order, "to": address}


@idempotent(AsyncMemoryStore(), key=argument("order"), name="async-mails", metrics=NoMetrics())
async def send_async(order: str) -> int:
    await current_async_claim().extend(timedelta(minutes=1))
    return len(order)


class Mailer:
    @idempotent(MemoryStore(), key=argument("order"))
    def send(self, order: str, *, copies: int = 1) -> Any:
        return f"{copies} of {order}"


def main() -> None:
    try:
        mail = send("o-1", address="ann@example.org")
    except RetryableError as error:
        assert_type(error.retry_after, int)
        raise
    assert_type(mail, dict[str, str])
    length = asyncio.run(send_async("o-1"))
    assert_type(length, int)
    try:
        send("o-1", "bob@example.org")
    except KeyConflictError as error:
        print(error.code)
    with disabled():
        print(send("o-1", "bob@example.org")["to"])
    print(mail["to"], send(order="o-1", address="ann@example.org")["to"], length, Mailer().send("o-2", copies=2))


if __name__ == "__main__":
    main()
