"""Idempotency of the API: parsing the key of a request, hashing the request, and the settings.

The guard consists of two SQL functions, `idempotency_begin` and `idempotency_finish`. They run in the same transaction
as the change that they guard. Everything that does not depend on API Gateway (stores, locks, consumer, transaction
guard) is in the package `grantwire_idempotency`. Its guide explains when to use which part.
"""

from __future__ import annotations

from grantwire.idempotency.requests import (
    IdempotencySettings,
    RequestIdentity,
    StoredResponse,
    parse_item_key,
    parse_key,
    request_hash,
)

__all__ = [
    "IdempotencySettings",
    "RequestIdentity",
    "StoredResponse",
    "parse_item_key",
    "parse_key",
    "request_hash",
]
