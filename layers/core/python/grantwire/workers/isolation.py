"""Finds the items of a batch that the database refuses, so that they do not hold back the others (N5, N6).

Who is at fault is decided by SQLSTATE. Classes 22 and 23 are the item's own data: it can never be written. Another
error that is not the system's is the item's too, but may pass, so it is retried later. An error of the system, or one
that every item of a batch meets, is not an item's fault: it is raised, nothing is given up, and the worker waits.
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
    """An item that could not be written, and why; `permanent` if it never can be."""

    item: T
    reason: str
    permanent: bool


class Written(NamedTuple, Generic[T, R]):
    """What the write of the others returned, None if there were no others, and the items that were left out."""

    result: R | None
    faults: list[Fault[T]]


def write_isolated(
    tx: Connection,
    items: Sequence[T],
    write: Callable[[Sequence[T]], R],
    *,
    probe: Callable[[], object] | None = None,
) -> Written[T, R]:
    """Write all items at once; if the database refuses that, find the ones at fault and write the others at once.

    `write` is one statement or opens a transaction of its own. `probe` writes something that is certainly valid: if
    every item is refused and the probe as well, the system is at fault.

    Raises RetryableError or SystemFaultError, with nothing written, if the system is at fault.
    """
    try:
        with wrap_exceptions():
            return Written(write(items), [])
    except SystemFaultError:
        raise
    except (RejectedError, InternalError) as error:
        faults = _find_faults(tx, items, write, error)
    if len(faults) == len(items):
        _raise_if_systemic(tx, list(faults.values()), probe)
    others = [item for number, item in enumerate(items) if number not in faults]
    with wrap_exceptions():
        return Written(write(others) if others else None, list(faults.values()))


def _find_faults(
    tx: Connection, items: Sequence[T], write: Callable[[Sequence[T]], R], error: Exception, first: int = 0
) -> dict[int, Fault[T]]:
    """Halve a refused batch until each item at fault is alone; by position, `first` being that of the first item.

    Each try is rolled back, so that its locks are gone before the next one: the valid items are written together at the
    end, in the one order in which all workers lock.
    """
    if len(items) == 1:
        return {first: Fault(items[0], str(error), isinstance(error, RejectedError))}
    middle = len(items) // 2
    found: dict[int, Fault[T]] = {}
    for half, position in ((items[:middle], first), (items[middle:], first + middle)):
        try:
            with wrap_exceptions(), tx.transaction(force_rollback=True):
                write(half)
        except SystemFaultError:
            raise
        except (RejectedError, InternalError) as again:
            found |= _find_faults(tx, half, write, again, position)
    return found


def _raise_if_systemic(tx: Connection, faults: Sequence[Fault[T]], probe: Callable[[], object] | None) -> None:
    """Raise SystemFaultError if not even the probe can be written, or if several items fail for no reason of theirs."""
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
