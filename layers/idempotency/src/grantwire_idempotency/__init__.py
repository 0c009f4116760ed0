"""Idempotency for handlers, consumers and jobs: a repeated message has no second effect and gets the same result.

docs/idempotency.md explains which part to use. Import all names from this package. Each one is loaded on first use, so
a job that keeps its keys in Redis never imports psycopg. The packages psycopg, redis, rbloom and aws-lambda-powertools
are optional. If one is missing, the part that requires it raises an ImportError with its name.

The entitlement service imports this package; this package imports nothing of the service.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grantwire_idempotency.backoff import Backoff
    from grantwire_idempotency.checker import IdempotencyChecker
    from grantwire_idempotency.circuit_breaker import CircuitBreaker
    from grantwire_idempotency.claims import HeldClaim, current_claim
    from grantwire_idempotency.compensation import Compensation
    from grantwire_idempotency.consumer import AsyncIdempotentConsumer, IdempotentConsumer
    from grantwire_idempotency.defaults import (
        DEFAULT_KEY_PREFIX,
        DEFAULT_LEASE,
        DEFAULT_ORDER_TTL,
        DEFAULT_TIMEOUT,
        DEFAULT_TTL,
    )
    from grantwire_idempotency.duplicates import by_content_hash, by_message_id, by_timestamp, by_version
    from grantwire_idempotency.execution import Outcome
    from grantwire_idempotency.fail_mode import FailMode
    from grantwire_idempotency.inbox import AsyncInboxGuard, InboxGuard
    from grantwire_idempotency.inbox_sql import new_messages
    from grantwire_idempotency.keys import business_key, entity_key, message_id, payload_hash, request_id
    from grantwire_idempotency.locks.interface import Lock, LockManager
    from grantwire_idempotency.locks.postgres import PostgresLocks
    from grantwire_idempotency.locks.redis import RedisLocks
    from grantwire_idempotency.messages import Message
    from grantwire_idempotency.metrics import EmfMetrics, IdempotencyMetrics, NoMetrics
    from grantwire_idempotency.powertools import PowertoolsMetrics
    from grantwire_idempotency.processed import ProcessedMessages
    from grantwire_idempotency.requests import GuardSettings, RequestIdentity, StoredResponse, request_hash
    from grantwire_idempotency.retries import RetryPolicy
    from grantwire_idempotency.serializers import JsonSerializer, Serializer
    from grantwire_idempotency.stores.breaker import AsyncBreakerStore, BreakerStore
    from grantwire_idempotency.stores.filters import BloomFilter, FilteredStore, KeyFilter, LruFilter
    from grantwire_idempotency.stores.interface import (
        AsyncStore,
        CheckResult,
        Claim,
        Duplicate,
        InProgress,
        Key,
        KeyState,
        KeyStatus,
        Store,
    )
    from grantwire_idempotency.stores.memory import AsyncMemoryStore, MemoryStore
    from grantwire_idempotency.stores.postgres import AsyncPostgresStore, PostgresStore
    from grantwire_idempotency.stores.redis import AsyncRedisStore, RedisStore
    from grantwire_idempotency.transaction import AsyncTransactionGuard, TransactionGuard
    from grantwire_idempotency.wrapper import idempotent

_NAMES_BY_MODULE = {
    "backoff": ["Backoff"],
    "checker": ["IdempotencyChecker"],
    "circuit_breaker": ["CircuitBreaker"],
    "claims": ["HeldClaim", "current_claim"],
    "compensation": ["Compensation"],
    "consumer": ["AsyncIdempotentConsumer", "IdempotentConsumer"],
    "defaults": ["DEFAULT_KEY_PREFIX", "DEFAULT_LEASE", "DEFAULT_ORDER_TTL", "DEFAULT_TIMEOUT", "DEFAULT_TTL"],
    "duplicates": ["by_content_hash", "by_message_id", "by_timestamp", "by_version"],
    "execution": ["Outcome"],
    "fail_mode": ["FailMode"],
    "inbox": ["AsyncInboxGuard", "InboxGuard"],
    "inbox_sql": ["new_messages"],
    "keys": ["business_key", "entity_key", "message_id", "payload_hash", "request_id"],
    "locks.interface": ["Lock", "LockManager"],
    "locks.postgres": ["PostgresLocks"],
    "locks.redis": ["RedisLocks"],
    "messages": ["Message"],
    "metrics": ["EmfMetrics", "IdempotencyMetrics", "NoMetrics"],
    "powertools": ["PowertoolsMetrics"],
    "processed": ["ProcessedMessages"],
    "requests": ["GuardSettings", "RequestIdentity", "StoredResponse", "request_hash"],
    "retries": ["RetryPolicy"],
    "serializers": ["JsonSerializer", "Serializer"],
    "stores.breaker": ["AsyncBreakerStore", "BreakerStore"],
    "stores.filters": ["BloomFilter", "FilteredStore", "KeyFilter", "LruFilter"],
    "stores.interface": [
        "AsyncStore",
        "CheckResult",
        "Claim",
        "Duplicate",
        "InProgress",
        "Key",
        "KeyState",
        "KeyStatus",
        "Store",
    ],
    "stores.memory": ["AsyncMemoryStore", "MemoryStore"],
    "stores.postgres": ["AsyncPostgresStore", "PostgresStore"],
    "stores.redis": ["AsyncRedisStore", "RedisStore"],
    "transaction": ["AsyncTransactionGuard", "TransactionGuard"],
    "wrapper": ["idempotent"],
}
_MODULE_BY_NAME = {name: f"{__name__}.{module}" for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = [
    "DEFAULT_KEY_PREFIX",
    "DEFAULT_LEASE",
    "DEFAULT_ORDER_TTL",
    "DEFAULT_TIMEOUT",
    "DEFAULT_TTL",
    "AsyncBreakerStore",
    "AsyncIdempotentConsumer",
    "AsyncInboxGuard",
    "AsyncMemoryStore",
    "AsyncPostgresStore",
    "AsyncRedisStore",
    "AsyncStore",
    "AsyncTransactionGuard",
    "Backoff",
    "BloomFilter",
    "BreakerStore",
    "CheckResult",
    "CircuitBreaker",
    "Claim",
    "Compensation",
    "Duplicate",
    "EmfMetrics",
    "FailMode",
    "FilteredStore",
    "GuardSettings",
    "HeldClaim",
    "IdempotencyChecker",
    "IdempotencyMetrics",
    "IdempotentConsumer",
    "InProgress",
    "InboxGuard",
    "JsonSerializer",
    "Key",
    "KeyFilter",
    "KeyState",
    "KeyStatus",
    "Lock",
    "LockManager",
    "LruFilter",
    "MemoryStore",
    "Message",
    "NoMetrics",
    "Outcome",
    "PostgresLocks",
    "PostgresStore",
    "PowertoolsMetrics",
    "ProcessedMessages",
    "RedisLocks",
    "RedisStore",
    "RequestIdentity",
    "RetryPolicy",
    "Serializer",
    "Store",
    "StoredResponse",
    "TransactionGuard",
    "business_key",
    "by_content_hash",
    "by_message_id",
    "by_timestamp",
    "by_version",
    "current_claim",
    "entity_key",
    "idempotent",
    "message_id",
    "new_messages",
    "payload_hash",
    "request_hash",
    "request_id",
]


def __getattr__(name: str) -> Any:
    """Import the module that defines the name."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
