"""The engine's drivers: one description of the work, executed with or without asyncio (C22).

The engine contains no I/O. It is a generator that yields *calls*, functions without arguments, and receives the result
of each call, or its exception at the `yield`:

    def run(store):
        check = yield lambda: store.check(key, ttl)
        ...

`drive` executes the calls directly. `drive_async` awaits what they return, so each call must return an awaitable then:
a method of an asynchronous store, a coroutine function of the user, `asyncio.sleep`. Wrapper, consumer and the stores
that wrap other stores exist once and are driven either way.

A `Shielded` call is the record of work that is done: an interruption must not end it (C24). Its result is an `Ending`.

A generator cannot raise StopIteration, and GeneratorExit closes it. If the work of the user raises one of them, it is
carried through the generators in another exception, and the drivers raise it as it was.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

Call = Callable[[], Any]
Steps = Generator[Call, Any, T]


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a shielded call: its error if it failed, and the interruption of the caller meanwhile."""

    error: BaseException | None = None
    interruption: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Shielded:
    """A call that is finished although the task that waits for it is cancelled."""

    call: Call

    def __call__(self) -> Ending:
        """Make the call. An exception of a signal handler can end it."""
        try:
            self.call()
        except BaseException as error:  # noqa: BLE001 - the engine decides about every error
            return Ending(error)
        return Ending()

    async def wait(self) -> Ending:
        """Make the call in a task of its own, and wait until it has ended, however often the own task is cancelled."""
        task = asyncio.ensure_future(self.call())
        interruption = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                interruption = error
        try:
            task.result()
        except BaseException as error:  # noqa: BLE001 - the engine decides about every error
            return Ending(error, interruption)
        return Ending(None, interruption)


class CarriedStop(Exception):  # noqa: N818 - not an error of its own
    """A StopIteration of the user."""


class CarriedExit(BaseException):
    """A GeneratorExit of the user."""


def original(error: BaseException) -> BaseException:
    """Return the error as the user raised it."""
    return error.args[0] if isinstance(error, CarriedStop | CarriedExit) else error


def drive(steps: Steps[T]) -> T:
    """Execute the calls of `steps` and return its result.

    A signal can interrupt this function between two calls. Then `steps` gets the interruption, as if the call before
    it had raised it.
    """
    try:
        try:
            return _drive(steps)
        except BaseException as interruption:
            if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:  # the error is that of the steps
                raise
            return _drive(steps, interruption)
    except (CarriedStop, CarriedExit) as carried:
        error = original(carried)
        raise error from error.__cause__


def _drive(steps: Steps[T], interruption: BaseException | None = None) -> T:
    try:
        call = next(steps) if interruption is None else steps.throw(_carry(interruption))
        while True:
            try:
                value = call()
            except BaseException as error:  # noqa: BLE001 - the engine decides about every error
                call = steps.throw(_carry(error))
            else:
                call = steps.send(value)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def drive_async(steps: Steps[T]) -> T:
    """Await the calls of `steps` and return its result."""
    try:
        return await _drive_async(steps)
    except CarriedExit as carried:
        error = original(carried)
        raise error from error.__cause__


async def _drive_async(steps: Steps[T]) -> T:
    task = asyncio.current_task()
    try:
        call = next(steps)
        while True:
            try:
                value = await (call.wait() if isinstance(call, Shielded) else call())
            except BaseException as error:  # also a cancellation: the engine releases the key
                if isinstance(error, GeneratorExit) and not _is_running(task):
                    raise  # the coroutine itself is closed, and can await nothing more
                call = steps.throw(_carry(error))
            else:
                call = steps.send(value)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _is_running(task: asyncio.Task[Any] | None) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop runs
        return False


def _carry(error: BaseException) -> BaseException:
    if isinstance(error, StopIteration):
        return CarriedStop(error)
    return CarriedExit(error) if isinstance(error, GeneratorExit) else error
