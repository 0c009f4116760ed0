"""The engine's drivers: one description of the work, executed with or without asyncio (C22).

The engine contains no I/O. It is a generator that yields *calls*, functions without arguments, and receives the result
of each call, or its exception at the `yield`:

    def run(store):
        check = yield lambda: store.check(key, ttl)
        ...

`drive` executes the calls directly. `drive_async` awaits what they return, so each call must return an awaitable then:
a method of an asynchronous store, a coroutine function of the user, `asyncio.sleep`. Wrapper, consumer and the stores
that wrap other stores exist once and are driven either way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

Call = Callable[[], Any]
Steps = Generator[Call, Any, T]


def drive(steps: Steps[T]) -> T:
    """Execute the calls of `steps` and return its result."""
    try:
        call = next(steps)
        while True:
            try:
                value = call()
            except BaseException as error:  # noqa: BLE001 - the engine decides about every error
                call = steps.throw(error)
            else:
                call = steps.send(value)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def drive_async(steps: Steps[T]) -> T:
    """Await the calls of `steps` and return its result."""
    try:
        call = next(steps)
        while True:
            try:
                value = await call()
            except BaseException as error:  # noqa: BLE001 - also a cancellation: the engine releases the key
                call = steps.throw(error)
            else:
                call = steps.send(value)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
