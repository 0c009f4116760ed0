"""Idempotency for any handler, consumer or job: the same message, sent again, has the same effect and the same result.

docs/idempotency.md says which part to use when. Names are imported from here, and each is loaded when it is first used:
a job that keeps its keys in Redis never loads psycopg. The packages redis, cachetools, rbloom and aws-lambda-powertools
are optional: a part that needs a missing one names it in an ImportError.

The entitlement service imports this package, and this package imports nothing of the service.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grantwire_idempotency.backoff import Backoff
    from grantwire_idempotency.checker import IdempotencyChecker
    from grantwire_idempotency.circuit_breaker import CircuitBreaker
    from grantwire_idempotency.compensation import Compensation
    from grantwire_idempotency.consumer import IdempotentConsumer
    from grantwire_idempotency.duplicates import by_content_hash, by_message_id, by_timestamp, by_version
    from grantwire_idempotency.execution import Outcome
    from grantwire_idempotency.fail_mode import FailMode
    from grantwire_idempotency.keys import business_key, entity_key, message_id, payload_hash, request_id
    from grantwire_idempotency.locks.interface import Lock, LockManager
    from grantwire_idempotency.locks.postgres import PostgresLocks
    from grantwire_idempotency.locks.redis import RedisLocks
    from grantwire_idempotency.messages import Message
    from grantwire_idempotency.metrics import IdempotencyMetrics, NoMetrics
    from grantwire_idempotency.powertools import PowertoolsMetrics
    from grantwire_idempotency.requests import GuardSettings, RequestIdentity, StoredResponse
    from grantwire_idempotency.retries import Retry
    from grantwire_idempotency.stores.breaker import BreakerStore
    from grantwire_idempotency.stores.hints import BloomHint, Hint, HintedStore, LruHint
    from grantwire_idempotency.stores.interface import (
        Check,
        Duplicate,
        InProgress,
        Key,
        New,
        Record,
        Status,
        Store,
    )
    from grantwire_idempotency.stores.memory import MemoryStore
    from grantwire_idempotency.stores.postgres import PostgresStore
    from grantwire_idempotency.stores.redis import RedisStore
    from grantwire_idempotency.transaction import TransactionGuard
    from grantwire_idempotency.wrapper import idempotent

_HOMES = {
    "backoff": ["Backoff"],
    "checker": ["IdempotencyChecker"],
    "circuit_breaker": ["CircuitBreaker"],
    "compensation": ["Compensation"],
    "consumer": ["IdempotentConsumer"],
    "duplicates": ["by_content_hash", "by_message_id", "by_timestamp", "by_version"],
    "execution": ["Outcome"],
    "fail_mode": ["FailMode"],
    "keys": ["business_key", "entity_key", "message_id", "payload_hash", "request_id"],
    "locks.interface": ["Lock", "LockManager"],
    "locks.postgres": ["PostgresLocks"],
    "locks.redis": ["RedisLocks"],
    "messages": ["Message"],
    "metrics": ["IdempotencyMetrics", "NoMetrics"],
    "powertools": ["PowertoolsMetrics"],
    "requests": ["StoredResponse", "GuardSettings", "RequestIdentity"],
    "retries": ["Retry"],
    "stores.breaker": ["BreakerStore"],
    "stores.hints": ["BloomHint", "Hint", "HintedStore", "LruHint"],
    "stores.interface": ["Check", "Duplicate", "InProgress", "Key", "New", "Record", "Status", "Store"],
    "stores.memory": ["MemoryStore"],
    "stores.postgres": ["PostgresStore"],
    "stores.redis": ["RedisStore"],
    "transaction": ["TransactionGuard"],
    "wrapper": ["idempotent"],
}
_HOME_OF = {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names}

__all__ = [
    "Backoff",
    "BloomHint",
    "BreakerStore",
    "Check",
    "CircuitBreaker",
    "Compensation",
    "Duplicate",
    "FailMode",
    "GuardSettings",
    "Hint",
    "HintedStore",
    "IdempotencyChecker",
    "IdempotencyMetrics",
    "IdempotentConsumer",
    "InProgress",
    "Key",
    "Lock",
    "LockManager",
    "LruHint",
    "MemoryStore",
    "Message",
    "New",
    "NoMetrics",
    "Outcome",
    "PostgresLocks",
    "PostgresStore",
    "PowertoolsMetrics",
    "Record",
    "RedisLocks",
    "RedisStore",
    "RequestIdentity",
    "Retry",
    "Status",
    "Store",
    "StoredResponse",
    "TransactionGuard",
    "business_key",
    "by_content_hash",
    "by_message_id",
    "by_timestamp",
    "by_version",
    "entity_key",
    "idempotent",
    "message_id",
    "payload_hash",
    "request_id",
]


def __getattr__(name: str) -> Any:
    """Load the module that has the name."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    """Return the names that `from grantwire_idempotency import` offers."""
    return sorted(__all__)
