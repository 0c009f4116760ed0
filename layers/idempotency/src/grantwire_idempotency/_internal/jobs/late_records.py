"""Outcomes of runs that the store did not take: they are kept and written before the next check of the process.

The result of a run is written unless another run has the key by then. The failure of a run, or of a check whose
response was lost, releases the key.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.logs import key_fingerprint
from grantwire_idempotency._internal.stores.interface import MARK_LEASE, Claim
from grantwire_idempotency.errors import LeaseLostError, RetryableError

if TYPE_CHECKING:
    from datetime import timedelta

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.steps import Steps

# Outcomes that wait for the next check. Beyond it the oldest is dropped.
_MAX_PENDING = 1_000


# Compared by identity, which runs no Python code: `deque.remove` fails if another thread changes the deque meanwhile.
@dataclass(frozen=True, slots=True, eq=False)
class _Outcome:
    """An outcome that the store did not take: an error if there is one, else a result."""

    claim: Claim
    result: str | None = None
    error: str | None = None


class LateRecords:
    """The outcomes of one job that wait for its store."""

    def __init__(self, store: Any, name: str, ttl: timedelta, order_ttl: timedelta, logger: LibraryLogger) -> None:
        self._store = store
        self._name = name
        self._ttl = ttl
        self._order_ttl = order_ttl
        self._logger = logger
        self._pending: deque[_Outcome] = deque(maxlen=_MAX_PENDING)

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add_result(self, claim: Claim, result: str | None) -> None:
        """Keep the result of a run."""
        self._pending.append(_Outcome(claim, result))

    def add_failure(self, claim: Claim, error: str) -> None:
        """Keep the failure of a run, which releases the key."""
        self._pending.append(_Outcome(claim, error=error))

    def write(self, key: str | None = None) -> Steps[None]:
        """Write the outcomes of one key, or of all, as far as the store takes them now."""
        for outcome in list(self._pending):
            if key is not None and outcome.claim.key.value != key:
                continue
            try:
                self._pending.remove(outcome)
            except ValueError:  # another thread writes it
                continue
            try:
                yield from self._write_one(outcome)
            except LeaseLostError:
                continue  # a later run has the key
            except RetryableError:
                self._pending.append(outcome)
                return
            except Exception:
                logger, fingerprint = self._logger, key_fingerprint(outcome.claim.key.value)
                logger.exception("could not write late record", extra={"key": fingerprint, "task_type": self._name})

    def _write_one(self, outcome: _Outcome) -> Steps[None]:
        """Write one outcome. A result needs a live claim, so the key is claimed again, unless another run has it."""
        claim = outcome.claim
        if outcome.error is not None:
            error = outcome.error
            yield lambda: self._store.store_failure(claim, error, self._ttl)
            return
        check = yield lambda: self._store.check(claim.key, MARK_LEASE, claim.token)
        if isinstance(check, Claim):
            yield lambda: self._store.store_result(check, outcome.result, self._ttl, self._order_ttl)
