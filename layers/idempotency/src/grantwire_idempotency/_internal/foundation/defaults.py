"""The default values of the library's parameters, for code that must agree with them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

# How long a result is stored after the work is done.
DEFAULT_TTL: Final = timedelta(hours=24)
# How long the version or time of an entity is kept, so that an older message stays a duplicate.
DEFAULT_ORDER_TTL: Final = timedelta(days=30)
# How long a claim blocks its key if the worker dies and no Lambda context says when the worker's time ends.
DEFAULT_LEASE: Final = timedelta(minutes=15)
# The prefix of every key in Redis.
DEFAULT_KEY_PREFIX: Final = "idempotency:"
# The connections of a Redis client that the library creates; more callers wait for a free one.
DEFAULT_MAX_CONNECTIONS: Final = 100
# How long a statement of the library waits for PostgreSQL.
DEFAULT_TIMEOUT: Final = timedelta(seconds=5)
