"""Sends commands to Redis or Valkey: scripts by their hash, or by their text if the server does not know them yet."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import NoScriptError, RedisClusterException, RedisError

from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.redis.errors import convert_error, wrap_exceptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis import Redis, RedisCluster

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger

# The start of a script that draws a fencing number: the server's time in microseconds. A key is claimed again after an
# earlier step has ended its claim, so the time is later then.
FENCE = """
local time = redis.call('TIME')
local fence = time[1] * 1000000 + time[2]
"""


class Script(NamedTuple):
    """A script, with the SHA-1 by which the server knows it."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> Script:
        """Return the script with this text."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def run_script(
    client: Redis | RedisCluster,
    script: Script,
    keys: Sequence[str],
    arguments: Sequence[Any],
    logger: LibraryLogger | None = None,
) -> Any:
    """Run the script and return its response; raise the errors of the library."""
    try:
        return client.evalsha(script.sha, len(keys), *keys, *arguments)
    except NoScriptError:
        with wrap_exceptions(logger or default_logger):
            return client.eval(script.text, len(keys), *keys, *arguments)
    except (RedisError, RedisClusterException, OSError) as error:
        raise convert_error(error, logger or default_logger) from error


async def run_script_async(
    client: Any, script: Script, keys: Sequence[str], arguments: Sequence[Any], logger: LibraryLogger | None = None
) -> Any:
    """Run the script with a client of `redis.asyncio`."""
    try:
        return await client.evalsha(script.sha, len(keys), *keys, *arguments)
    except NoScriptError:
        with wrap_exceptions(logger or default_logger):
            return await client.eval(script.text, len(keys), *keys, *arguments)
    except (RedisError, RedisClusterException, OSError) as error:
        raise convert_error(error, logger or default_logger) from error


def set_new(
    client: Redis | RedisCluster, name: str, value: str, milliseconds: int, logger: LibraryLogger | None = None
) -> bool:
    """Set the entry and return true if it does not exist; raise the errors of the library."""
    try:
        return client.set(name, value, px=milliseconds, nx=True) is not None
    except (RedisError, RedisClusterException, OSError) as error:
        raise convert_error(error, logger or default_logger) from error


async def set_new_async(
    client: Any, name: str, value: str, milliseconds: int, logger: LibraryLogger | None = None
) -> bool:
    """Set the entry with a client of `redis.asyncio`."""
    try:
        return await client.set(name, value, px=milliseconds, nx=True) is not None
    except (RedisError, RedisClusterException, OSError) as error:
        raise convert_error(error, logger or default_logger) from error
