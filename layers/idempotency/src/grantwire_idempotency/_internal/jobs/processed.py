"""An adapter with the method names of many articles about idempotent consumers.

    storage = ProcessedMessages(store)
    if not storage.is_processed(message.id):
        storage.mark_processed(message.id, result)

Two workers that both ask before either of them marks will both do the work. So use `@idempotent`, a consumer or
`IdempotencyChecker` for new code: they claim the key first.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.defaults import DEFAULT_TTL
from grantwire_idempotency._internal.foundation.serializers import JsonSerializer
from grantwire_idempotency._internal.foundation.wiring import duration_rule, require, serializer_rule, sync_store_rule
from grantwire_idempotency._internal.stores.interface import (
    MARK_LEASE,
    Claim,
    Key,
    KeyStatus,
    claim_lost_error,
)
from grantwire_idempotency.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from grantwire_idempotency._internal.foundation.serializers import Serializer
    from grantwire_idempotency._internal.stores.interface import Store

_JSON = JsonSerializer()


class ProcessedMessages:
    """Remembers processed messages in a store, for `ttl`. Every method raises RetryableError if it is unavailable."""

    def __init__(
        self,
        store: Store,
        *,
        ttl: timedelta = DEFAULT_TTL,
        serializer: Serializer = _JSON,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        require(sync_store_rule(store), duration_rule("ttl", ttl), serializer_rule(serializer))
        self._store = store
        self._ttl = ttl
        self._serializer = serializer
        self._now = now

    def is_processed(self, message_id: str) -> bool:
        """Return whether the message is processed and has not expired."""
        state = self._store.get_result(Key(message_id))
        return state is not None and state.status is KeyStatus.COMPLETED

    def mark_processed(self, message_id: str, result: Any = None) -> None:
        """Remember the message with its result. Raises LeaseLostError if another worker has marked or claimed it."""
        text = None if result is None else self._serializer.dump(result)
        claim = self._store.check(Key(message_id), MARK_LEASE)
        if not isinstance(claim, Claim):
            raise claim_lost_error()
        self._store.store_result(claim, text, self._ttl)

    def get_processed_result(self, message_id: str) -> Any:
        """Return the result of a processed message; None if it has no result or is not processed."""
        state = self._store.get_result(Key(message_id))
        if state is None or state.status is not KeyStatus.COMPLETED or state.result is None:
            return None
        return self._serializer.load(state.result)

    def cleanup(self, older_than: datetime) -> int:
        """Forget the messages that were processed before `older_than`, and return how many there were.

        They are selected by their age, whether or not they have expired, and are new again. Other jobs in the same
        store are affected as well. Raises ConfigError for a time without an offset, and for a store that does not know
        when a key was completed: Redis deletes each entry after its `ttl` and keeps no other time.
        """
        if older_than.tzinfo is None:
            raise ConfigError(["older_than must have an offset, such as datetime.now(UTC)"])
        delete_completed = getattr(self._store, "delete_completed", None)
        if delete_completed is None:
            raise ConfigError(
                [f"{type(self._store).__name__} cannot select by age: its entries expire after their ttl"]
            )
        return int(delete_completed(self._now() - older_than))
