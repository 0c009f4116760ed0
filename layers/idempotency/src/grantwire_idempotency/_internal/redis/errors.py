"""Converts errors of redis-py into errors of the library: the only place that interprets them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterError,
    ConnectionError,  # noqa: A004  # not a subclass of the built-in one
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    TimeoutError,  # noqa: A004  # see ConnectionError
    TryAgainError,
)

from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.shortages import BUSY, is_local_shortage
from grantwire_idempotency.errors import BusyError, ConfigError, InternalError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger

# The command is valid, but the server cannot execute it now: it is unreachable, starting, a replica or full, or the
# cluster has no node for the key.
_RETRYABLE = (
    ConnectionError,
    TimeoutError,
    ReadOnlyError,
    OutOfMemoryError,
    ClusterError,
    RedisClusterException,  # raised by the cluster client when it cannot reach a node
    TryAgainError,
)
_RETRYABLE_CODES = {"BUSY", "MISCONF", "NOREPLICAS"}
# A pool has no free connection, or the server accepts no more of them. For the first, redis-py 8 has
# MaxConnectionsError; older versions and the blocking pools only have these texts.
_BUSY_TEXTS = ("Too many connections", "No connection available.", "max number of clients reached")
# The server refuses the user, its password or its command, or has no such database. The first two are subclasses of
# ConnectionError, but no retry can succeed.
_WRONG_SETTINGS = (AuthenticationError, AuthorizationError, NoPermissionError)
_WRONG_DATABASE_TEXTS = ("DB index is out of range", "invalid DB index", "SELECT is not allowed in cluster mode")


@contextmanager
def wrap_exceptions(logger: LibraryLogger = default_logger) -> Iterator[None]:
    """Convert errors of the Redis client into errors of the library."""
    try:
        yield
    except (RedisError, RedisClusterException, OSError) as error:
        raise convert_error(error, logger) from error


def convert_error(error: Exception, logger: LibraryLogger = default_logger) -> Exception:
    """Return BusyError if no connection is free, RetryableError if the server is unavailable.

    ConfigError if it refuses the user or has no such database, otherwise InternalError. Another error of the operating
    system is returned unchanged: it may be a time limit of the user.
    """
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, _WRONG_SETTINGS) or any(text in str(error) for text in _WRONG_DATABASE_TEXTS):
        return ConfigError([f"Redis refuses the connection or its user: {reason}"])
    if _is_busy(error):
        logger.debug("no free connection", extra={"reason": reason})
        return BusyError(BUSY)
    if isinstance(error, _RETRYABLE) or str(error).partition(" ")[0] in _RETRYABLE_CODES:
        logger.warning("redis unavailable", extra={"reason": reason})
        return RetryableError("temporarily unavailable, send the same request again")
    if isinstance(error, OSError):
        return error
    return InternalError(f"Redis rejected a command: {reason}")


def _is_busy(error: Exception) -> bool:
    if not isinstance(error, ConnectionError | OSError):
        return False
    is_pool_full = type(error).__name__ == "MaxConnectionsError" or any(text in str(error) for text in _BUSY_TEXTS)
    return is_pool_full or is_local_shortage(error)
