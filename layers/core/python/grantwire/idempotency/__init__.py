"""Idempotency of the API: what an API Gateway request says about its key, and the settings of the guard.

The guard itself lives in two SQL functions, `idempotency_begin` and `idempotency_finish`, which run in the transaction
of the effect they guard. Everything that needs no API Gateway request (stores, locks, consumer, transaction guard) is
the package `grantwire_idempotency`; docs/idempotency.md says which part to use when.
"""

from __future__ import annotations

from grantwire.idempotency.requests import (
    IdempotencySettings,
    RequestIdentity,
    StoredResponse,
    parse_key,
    request_hash,
)

__all__ = ["IdempotencySettings", "RequestIdentity", "StoredResponse", "parse_key", "request_hash"]
