"""Tests of the work itself: inside the block every call runs, and no store is used.

Run it: python switched_off.py

    mail for o-1
    mail for o-1
    mail for o-1
"""

# shown from here
from collections.abc import Iterator

import pytest

from grantwire_idempotency import MemoryStore, argument, disabled, idempotent


@idempotent(MemoryStore(), key=argument("order"), name="mail:order")
def send(order: str) -> None:
    print(f"mail for {order}")


@pytest.fixture(autouse=True)
def without_idempotency() -> Iterator[None]:
    with disabled():
        yield


# shown to here


if __name__ == "__main__":
    with disabled():
        send("o-1")
        send("o-1")
    send("o-1")
    send("o-1")
