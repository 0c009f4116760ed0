"""Idempotency: the same request, message or job, sent again, has the same effect and gets the same answer.

For the API the guard lives in two SQL functions, `idempotency_begin` and `idempotency_finish`, which run in the
transaction of the effect they guard; `requests` holds what Python knows about it. The rest of the package is a library
for any handler, consumer or job; docs/idempotency.md says which part to use when.

Names are imported from here, and each is loaded when it is first asked for: a job that keeps its keys in Redis never
loads psycopg, and `grant` never loads any of the library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from grantwire.idempotency.requests import (
    Answer,
    IdempotencySettings,
    RequestIdentity,
    parse_key,
    request_hash,
)

if TYPE_CHECKING:
    from grantwire.idempotency.checker import IdempotencyChecker
    from grantwire.idempotency.compensation import Compensation
    from grantwire.idempotency.consumer import IdempotentConsumer
    from grantwire.idempotency.duplicates import by_content_hash, by_message_id, by_timestamp, by_version
    from grantwire.idempotency.execution import FailMode, Outcome
    from grantwire.idempotency.keys import business_key, entity_key, message_id, payload_hash, request_id
    from grantwire.idempotency.locks.interface import Lock, LockManager
    from grantwire.idempotency.locks.postgres import PostgresLocks
    from grantwire.idempotency.locks.redis import RedisLocks
    from grantwire.idempotency.messages import Message
    from grantwire.idempotency.metrics import EmfMetrics, IdempotencyMetrics, NoMetrics
    from grantwire.idempotency.retries import Retry
    from grantwire.idempotency.stores.breaker import BreakerStore
    from grantwire.idempotency.stores.hints import BloomHint, Hint, HintedStore, LruHint
    from grantwire.idempotency.stores.interface import (
        Check,
        Duplicate,
        InProgress,
        Key,
        New,
        Record,
        Status,
        Store,
    )
    from grantwire.idempotency.stores.memory import MemoryStore
    from grantwire.idempotency.stores.postgres import PostgresStore
    from grantwire.idempotency.stores.redis import RedisStore
    from grantwire.idempotency.transaction import TransactionGuard
    from grantwire.idempotency.wrapper import idempotent

_HOMES = {
    "checker": ["IdempotencyChecker"],
    "compensation": ["Compensation"],
    "consumer": ["IdempotentConsumer"],
    "duplicates": ["by_content_hash", "by_message_id", "by_timestamp", "by_version"],
    "execution": ["FailMode", "Outcome"],
    "keys": ["business_key", "entity_key", "message_id", "payload_hash", "request_id"],
    "locks.interface": ["Lock", "LockManager"],
    "locks.postgres": ["PostgresLocks"],
    "locks.redis": ["RedisLocks"],
    "messages": ["Message"],
    "metrics": ["EmfMetrics", "IdempotencyMetrics", "NoMetrics"],
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
    "Answer",
    "BloomHint",
    "BreakerStore",
    "Check",
    "Compensation",
    "Duplicate",
    "EmfMetrics",
    "FailMode",
    "Hint",
    "HintedStore",
    "IdempotencyChecker",
    "IdempotencyMetrics",
    "IdempotencySettings",
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
    "Record",
    "RedisLocks",
    "RedisStore",
    "RequestIdentity",
    "Retry",
    "Status",
    "Store",
    "TransactionGuard",
    "business_key",
    "by_content_hash",
    "by_message_id",
    "by_timestamp",
    "by_version",
    "entity_key",
    "idempotent",
    "message_id",
    "parse_key",
    "payload_hash",
    "request_hash",
    "request_id",
]


def __getattr__(name: str) -> Any:
    """Load the module that has the name."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    """What `from grantwire.idempotency import` offers."""
    return sorted(__all__)
