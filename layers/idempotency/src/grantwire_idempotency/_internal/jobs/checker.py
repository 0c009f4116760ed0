"""A minimal interface to a store, for code with its own control flow (C1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire_idempotency._internal.foundation.defaults import DEFAULT_TTL
from grantwire_idempotency._internal.foundation.forks import ForkSafeLock
from grantwire_idempotency._internal.foundation.wiring import duration_rule, require, sync_store_rule
from grantwire_idempotency._internal.stores.interface import (
    MARK_LEASE,
    Claim,
    Duplicate,
    InProgress,
    Key,
    KeyStatus,
    require_same_content,
)
from grantwire_idempotency.errors import LeaseLostError, RequestInProgressError

if TYPE_CHECKING:
    from datetime import timedelta

    from grantwire_idempotency._internal.stores.interface import Store

_IN_PROGRESS = "another worker is processing this message; retry later"


class IdempotencyChecker:
    """Records which messages were processed, for `ttl` after each was completed.

        if checker.mark_processing(key, timedelta(minutes=5)):
            try:
                work()
            except Exception as error:
                checker.mark_failed(key, error)
                raise
            checker.mark_completed(key)

    The caller that gets True from `mark_processing` is the only one that works on the key until the claim expires: the
    store decides atomically. Another checker, for example in another process, can mark a key too, unless a claim on it
    is live: only the checker that made a claim can end it. Every method raises RetryableError if the store is
    unavailable.
    """

    def __init__(self, store: Store, *, ttl: timedelta = DEFAULT_TTL) -> None:
        require(sync_store_rule(store), duration_rule("ttl", ttl))
        self._store = store
        self._ttl = ttl
        self._lock = ForkSafeLock()
        self._claims: dict[tuple[str, int | None], Claim] = {}

    def is_processed(self, key: Key | str) -> bool:
        """Return whether the key is completed and has not expired.

        The state can change at any time: use `mark_processing` to decide whether to do the work.
        """
        key = _to_key(key)
        state = self._store.get_result(key)
        return state is not None and state.status is KeyStatus.COMPLETED and key.is_covered_by(state.mark)

    def mark_processing(self, key: Key | str, ttl: timedelta) -> bool:
        """Claim the key for `ttl`; return True if this caller must do the work, False if it is already done.

        The key of a caller that dies is free again after `ttl`; the key of a run that failed is free immediately.
        Raises RequestInProgressError if another caller has claimed the key, and KeyConflictError if the key was used
        with another content hash.
        """
        check = self._store.check(_to_key(key), ttl)
        require_same_content(check)
        if isinstance(check, InProgress):
            raise RequestInProgressError(_IN_PROGRESS)
        if isinstance(check, Duplicate):
            return False
        self._remember(check)
        return True

    def mark_completed(self, key: Key | str, result: str | None = None) -> None:
        """Mark the key as processed and store `result`.

        Without a claim of this checker, the key is claimed and completed; a key that is completed remains as it is,
        and one that another worker has claimed raises RequestInProgressError. Raises LeaseLostError if the claim of
        this checker has expired, or another worker has claimed or completed the key since. After any other
        RetryableError it is safe to call the method again.
        """
        claim = self._find_claim(key)
        if claim is None:
            check = self._store.check(_to_key(key), MARK_LEASE)
            require_same_content(check)
            if isinstance(check, Duplicate):
                return
            if isinstance(check, InProgress):
                raise RequestInProgressError(_IN_PROGRESS)
            claim = check
            self._remember(claim)
        try:
            self._store.store_result(claim, result, self._ttl)
        except LeaseLostError:
            self._forget(claim)
            raise
        self._forget(claim)

    def mark_failed(self, key: Key | str, error: BaseException | str) -> None:
        """Release the key, so that a retry runs, and store `error`.

        Changes nothing if the key is completed, or if another worker has claimed it.
        """
        claim = self._find_claim(key) or Claim(_to_key(key))
        self._store.store_failure(claim, str(error) or repr(error), self._ttl)
        self._forget(claim)

    def _find_claim(self, key: Key | str) -> Claim | None:
        key = _to_key(key)
        with self._lock:
            return self._claims.get((key.value, key.mark))

    def _remember(self, claim: Claim) -> None:
        with self._lock:
            self._claims[claim.key.value, claim.key.mark] = claim

    def _forget(self, claim: Claim) -> None:
        claim_id = (claim.key.value, claim.key.mark)
        with self._lock:
            if self._claims.get(claim_id) == claim:
                del self._claims[claim_id]


def _to_key(key: Key | str) -> Key:
    return key if isinstance(key, Key) else Key(key)
