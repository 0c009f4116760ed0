"""Ask and tell by key: the smallest way to use a store, for code that brings its own control flow (C1)."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from grantwire_idempotency.errors import InternalError, LeaseLostError, RequestInProgressError
from grantwire_idempotency.stores.interface import Duplicate, InProgress, Key, Status
from grantwire_idempotency.wiring import length_rule, require, store_rule

if TYPE_CHECKING:
    from grantwire_idempotency.stores.interface import New, Store


class IdempotencyChecker:
    """Remembers which messages were processed, for `ttl` after each was completed.

        if checker.mark_processing(key, timedelta(minutes=5)):
            try:
                work()
            except Exception as error:
                checker.mark_failed(key, error)
                raise
            checker.mark_completed(key)

    Whoever gets True from `mark_processing` is the only one at work on the key until that time is up: the store
    decides, in one step. The checker remembers what it claimed, so the same checker has to be told how it ended, and by
    nobody but whoever got True. Every method raises RetryableError if the store is out of reach.
    """

    def __init__(self, store: Store, *, ttl: timedelta = timedelta(hours=24)) -> None:
        require(store_rule(store), length_rule("ttl", ttl))
        self._store = store
        self._ttl = ttl
        self._lock = threading.Lock()
        self._claims: dict[tuple[str, int | None], New] = {}

    def is_processed(self, key: Key | str) -> bool:
        """Whether the key is completed and has not expired; for those who only want to know, since it may change."""
        key = _key(key)
        record = self._store.get_result(key)
        return record is not None and record.status is Status.COMPLETED and key.covered_by(record.mark)

    def mark_processing(self, key: Key | str, ttl: timedelta) -> bool:
        """Claim the key for `ttl`: True if the work is this caller's, False if it was done before.

        RequestInProgressError while somebody else is at it. A caller that dies leaves the key to whoever asks after
        `ttl`; so does one that failed, at once.
        """
        found = self._store.check(_key(key), ttl)
        if isinstance(found, InProgress):
            raise RequestInProgressError("somebody else is processing this message, try again later")
        if isinstance(found, Duplicate):
            return False
        with self._lock:
            self._claims[found.key.value, found.key.mark] = found
        return True

    def mark_completed(self, key: Key | str, result: str | None = None) -> None:
        """The work is done: the key is processed from now on, with `result` for whoever looks it up.

        LeaseLostError if that took so long that somebody else has the key or has completed it. After any other
        RetryableError it may be said again.
        """
        claim = self._claim(key)
        if claim is None:
            raise InternalError("mark_completed without a mark_processing of this checker that returned True")
        try:
            self._store.store_result(claim, result, self._ttl)
        except LeaseLostError:
            self._forget(claim)
            raise
        self._forget(claim)

    def mark_failed(self, key: Key | str, error: BaseException | str) -> None:
        """The work failed: the key is free, so that a retry runs; `error` may be looked up.

        Changes nothing if this checker has no claim on the key, or has one no more.
        """
        claim = self._claim(key)
        if claim is not None:
            self._store.store_failure(claim, str(error) or repr(error), self._ttl)
            self._forget(claim)

    def _claim(self, key: Key | str) -> New | None:
        key = _key(key)
        with self._lock:
            return self._claims.get((key.value, key.mark))

    def _forget(self, claim: New) -> None:
        name = (claim.key.value, claim.key.mark)
        with self._lock:
            if self._claims.get(name) == claim:
                del self._claims[name]


def _key(key: Key | str) -> Key:
    return key if isinstance(key, Key) else Key(key)
