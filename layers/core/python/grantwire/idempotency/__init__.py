"""Idempotency: the same request, sent again, has the same effect and gets the same answer.

The guard of the API lives in two SQL functions, `idempotency_begin` and `idempotency_finish`, which run in the
transaction of the effect they guard. This package holds what Python knows about it: what a valid key is, what makes two
requests the same, and the answer that is stored.
"""

from grantwire.idempotency.requests import (
    Answer,
    IdempotencySettings,
    RequestIdentity,
    parse_key,
    request_hash,
)

__all__ = ["Answer", "IdempotencySettings", "RequestIdentity", "parse_key", "request_hash"]
