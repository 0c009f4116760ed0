"""Batch writes that isolate the items that the database rejects from the valid ones (N5, N6).

The SQLSTATE of an error decides its cause:

- Classes 22 and 23: the data of the item is invalid. The item can never be written.
- Other errors of a single item: the cause may be temporary, so the item is retried later.
- Errors of the system, and errors that every item of a batch has: no item is at fault. The error is raised, no item is
  marked as failed, and the worker waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from grantwire.database import wrap_exceptions
from grantwire.errors import InternalError, RejectedError, SystemFaultError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grantwire.database import Connection

T = TypeVar("T")
R = TypeVar("R")


class Fault(NamedTuple, Generic[T]):
    """An item that could not be written, and the reason; `permanent` if it can never be written."""

    item: T
    reason: str
    permanent: bool


class WriteResult(NamedTuple, Generic[T, R]):
    """The result of writing the valid items, None if there were none, and the items that were not written."""

    result: R | None
    faults: list[Fault[T]]


def write_isolated(
    tx: Connection,
    items: Sequence[T],
    write: Callable[[Sequence[T]], R],
    *,
    probe: Callable[[], object] | None = None,
) -> WriteResult[T, R]:
    """Write all items together; if the database rejects them, find the faulty items and write the others together.

    `write` must be one statement or open its own transaction. `probe` writes data that is known to be valid: if every
    item and the probe are rejected, the system is at fault.

    Raises RetryableError or SystemFaultError, with nothing written, if the system is at fault.
    """
    try:
        with wrap_exceptions():
            return WriteResult(write(items), [])
    except SystemFaultError:
        raise
    except (RejectedError, InternalError) as error:
        faults = _find_faults(tx, items, write, error)
    if len(faults) == len(items):
        _raise_if_systemic(tx, list(faults.values()), probe)
    valid = [item for position, item in enumerate(items) if position not in faults]
    with wrap_exceptions():
        return WriteResult(write(valid) if valid else None, list(faults.values()))


def _find_faults(
    tx: Connection, items: Sequence[T], write: Callable[[Sequence[T]], R], error: Exception, first: int = 0
) -> dict[int, Fault[T]]:
    """Return the faulty items of a rejected batch by position, found by bisection; `first` is the first position.

    Each trial write is rolled back, which releases its locks. The valid items are written together at the end, so that
    all workers lock rows in the same order.
    """
    if len(items) == 1:
        return {first: Fault(items[0], str(error), isinstance(error, RejectedError))}
    middle = len(items) // 2
    faults: dict[int, Fault[T]] = {}
    for half, position in ((items[:middle], first), (items[middle:], first + middle)):
        try:
            with wrap_exceptions(), tx.transaction(force_rollback=True):
                write(half)
        except SystemFaultError:
            raise
        except (RejectedError, InternalError) as half_error:
            faults |= _find_faults(tx, half, write, half_error, position)
    return faults


def _raise_if_systemic(tx: Connection, faults: Sequence[Fault[T]], probe: Callable[[], object] | None) -> None:
    """Raise SystemFaultError if the probe is rejected too, or if several items fail and none has invalid data."""
    reason = faults[0].reason
    if len(faults) > 1 and not any(fault.permanent for fault in faults):
        raise SystemFaultError(f"every item of a batch failed: {reason}")
    if probe is None:
        return
    try:
        with wrap_exceptions(), tx.transaction(force_rollback=True):
            probe()
    except (RejectedError, InternalError) as error:
        raise SystemFaultError(f"nothing can be written: {reason}") from error
