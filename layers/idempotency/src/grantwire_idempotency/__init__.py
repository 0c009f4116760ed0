"""Idempotency for handlers, consumers and jobs: a repeated message has no second effect and gets the same result.

Import all names from this package; `__init__.pyi` lists them. The errors are in `grantwire_idempotency.errors`. Each
name is loaded on first use, so a job that keeps its keys in Redis never imports psycopg. The packages psycopg, redis,
rbloom, aws-lambda-powertools and opentelemetry-api are optional. If one is missing, the part that requires it raises an
ImportError with its name.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Type checkers and editors read the same names in `__init__.pyi`; a test compares the two.
_NAMES_BY_MODULE = {
    "consumer.consumers": "AsyncIdempotentConsumer IdempotentConsumer",
    "consumer.retries": "RetryPolicy",
    "foundation.backoff": "Backoff",
    "foundation.circuit_breaker": "CircuitBreaker",
    "foundation.defaults": "DEFAULT_KEY_PREFIX DEFAULT_LEASE DEFAULT_ORDER_TTL DEFAULT_TIMEOUT DEFAULT_TTL",
    "foundation.fail_mode": "FailMode",
    "foundation.serializers": "JsonSerializer Serializer",
    "guards.inbox": "AsyncInboxGuard InboxGuard",
    "guards.inbox_sql": "new_messages",
    "guards.requests": "GuardSettings RequestIdentity StoredResponse raise_for_outcome request_hash",
    "guards.transaction": "AsyncTransactionGuard TransactionGuard",
    "jobs.checker": "IdempotencyChecker",
    "jobs.claims": "AsyncHeldClaim HeldClaim current_async_claim current_claim",
    "jobs.compensation": "Compensation",
    "jobs.execution": "Outcome",
    "jobs.processed": "ProcessedMessages",
    "jobs.switch": "disabled",
    "jobs.wrapper": "idempotent",
    "keys.arguments": "argument",
    "keys.duplicates": "by_content_hash by_message_id by_timestamp by_version",
    "keys.messages": "Message",
    "keys.strategies": "business_key entity_key message_id payload_hash request_id",
    "locks.interface": "Lock LockManager",
    "locks.postgres": "PostgresLocks",
    "locks.redis": "RedisLocks",
    "foundation.logs": "key_fingerprint",
    "middleware.asgi": "AsgiIdempotencyMiddleware",
    "middleware.wsgi": "WsgiIdempotencyMiddleware",
    "metrics.interface": "EmfMetrics IdempotencyMetrics NoMetrics",
    "metrics.opentelemetry": "OpenTelemetryMetrics",
    "metrics.powertools": "PowertoolsMetrics",
    "stores.breaker": "AsyncBreakerStore BreakerStore",
    "stores.filters": "BloomFilter FilteredStore KeyFilter LruFilter",
    "stores.interface": "AsyncStore CheckResult Claim Duplicate InProgress Key KeyState KeyStatus Store",
    "stores.memory": "AsyncMemoryStore MemoryStore",
    "stores.postgres": "AsyncPostgresStore PostgresStore",
    "stores.redis": "AsyncRedisStore RedisStore connect_redis connect_redis_async",
    "stores.sqlite": "SqliteStore",
}
_MODULE_BY_NAME = {
    name: f"{__name__}._internal.{module}" for module, names in _NAMES_BY_MODULE.items() for name in names.split()
}
# What an optional package imports as.
_OPTIONAL = ("aws_lambda_powertools", "opentelemetry", "psycopg", "rbloom", "redis")


def __getattr__(name: str) -> Any:
    """Import the module that defines the name. `import *` gets the names whose packages are installed."""
    if name == "__all__":
        return [public for public in _MODULE_BY_NAME if _can_import(public)]
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(_MODULE_BY_NAME)


def _can_import(name: str) -> bool:
    try:
        import_module(_MODULE_BY_NAME[name])
    except ImportError as error:
        if error.name not in _OPTIONAL:
            raise
        return False
    return True
