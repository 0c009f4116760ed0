"""A store in Redis or Valkey: for whoever has one, and wants duplicates found without asking a database.

Every key has up to four entries, each with its own time to live; the server forgets them by itself:

    <prefix><key>          a claim, `claim:<mark>:<token>`, or a completed record, `completed:<mark>:<token>`
    <prefix>other:<key>    if there are both, the one that ends sooner: so the first is there whenever anything counts
    <prefix>result:<key>   the result of the completed record, unless that is None
    <prefix>error:<key>    the error of the last failure

So a claim without a mark is one `SET NX PX`; whatever else changes something looks at two entries and is a script.

What the server must be: one primary, Redis or Valkey, with `maxmemory-policy noeviction`, because an entry that is
evicted is a message that runs twice. It replicates asynchronously: a failover may lose the last claims and results.
Where that is too much, use PostgreSQL. For Redis Cluster give `hash_tags=True`; it changes the names of all entries.
"""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire_idempotency.errors import ConfigError, InternalError, RetryableError
from grantwire_idempotency.logs import logger
from grantwire_idempotency.optional import needs
from grantwire_idempotency.stores.interface import (
    Duplicate,
    InProgress,
    New,
    Record,
    Status,
    lifetime,
    storable_error,
    storable_result,
    taken,
)

with needs("redis", for_what="RedisStore"):
    from redis import Redis, RedisCluster
    from redis.backoff import NoBackoff
    from redis.exceptions import (
        AuthenticationError,
        AuthorizationError,
        ClusterError,
        ConnectionError,  # noqa: A004  # theirs is not a subclass of the built-in one
        OutOfMemoryError,
        ReadOnlyError,
        RedisClusterException,
        RedisError,
        TimeoutError,  # noqa: A004  # as ConnectionError
        TryAgainError,
    )
    from redis.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire_idempotency.stores.interface import Check, Key

_KINDS = ("", "other:", "result:", "error:")
# Put before a key that begins like the name of another entry, so that no key can be taken for another key's result.
_ESCAPE = "key:"
_RESERVED = (*_KINDS[1:], _ESCAPE)

_HELD = re.compile(r"(claim|completed):(\d*):.*", re.DOTALL)

# Nothing is wrong with the command, but the server cannot take it now: out of reach, starting, a replica, full, or in a
# cluster that has no node for the key.
_RETRYABLE = (
    ConnectionError,
    TimeoutError,
    ReadOnlyError,
    OutOfMemoryError,
    ClusterError,
    RedisClusterException,  # of the cluster's client, which cannot reach its nodes
    TryAgainError,
)
_RETRYABLE_CODES = {"BUSY", "MISCONF", "NOREPLICAS"}
# Waiting will not mend a wrong password.
_REFUSED = (AuthenticationError, AuthorizationError)

# What all scripts begin with: who has the key, and how to write that down.
_READ = """
local token, mark, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local held = {}
for _, name in ipairs({KEYS[1], KEYS[2]}) do
  local value = redis.call('GET', name)
  if value then
    local kind, of_mark, of_token = string.match(value, '^(%a+):(%d*):(.*)$')
    held[kind] = {value = value, mark = of_mark, token = of_token, left = math.max(1, redis.call('PTTL', name))}
  end
end
local claim, record = held.claim, held.completed
local covered = record and (mark == '' or record.mark == '' or tonumber(mark) <= tonumber(record.mark))
local taken = covered or (claim and claim.token ~= token)

local function put(name, entry)
  if entry then
    redis.call('SET', name, entry.value, 'PX', entry.left)
  else
    redis.call('DEL', name)
  end
end

local function keep(one, other)
  if not one or (other and other.left > one.left) then
    one, other = other, one
  end
  put(KEYS[1], one)
  put(KEYS[2], other)
end
"""

_CHECK = """
if covered then
  return {'DUPLICATE', redis.call('GET', KEYS[3])}
elseif taken then
  return {'IN_PROGRESS', claim.left}
end
keep({value = 'claim:' .. mark .. ':' .. token, left = ttl}, record)
return {'NEW'}
"""

_COMPLETE = """
if record and record.token == token then
  return 1
elseif taken then
  return 0
end
keep({value = 'completed:' .. mark .. ':' .. token, left = ttl})
if ARGV[4] then
  redis.call('SET', KEYS[3], ARGV[4], 'PX', ttl)
else
  redis.call('DEL', KEYS[3])
end
redis.call('DEL', KEYS[4])
return 1
"""

_FAIL = """
if not taken then
  keep(record)
  redis.call('SET', KEYS[4], ARGV[4], 'PX', ttl)
end
"""


class RedisStore:
    """Keeps every promise of a store for all processes that share one Redis; time is the server's. For any threads.

    The client is yours. By itself it tries a server that is away ten times, for seconds: give it socket timeouts and a
    `Retry` that suit the job, or make it with `connect`. Two stores with different prefixes know nothing of each other,
    unless one's prefix begins with the other's.
    """

    def __init__(self, client: Redis | RedisCluster, *, prefix: str = "idempotency:", hash_tags: bool = False) -> None:
        # An asynchronous client would answer every claim with a coroutine, which counts as true.
        if not isinstance(client, Redis | RedisCluster):
            raise ConfigError([f"RedisStore needs a synchronous Redis client, not a {type(client).__name__}"])
        if isinstance(client, RedisCluster) and not hash_tags:
            raise ConfigError(["a RedisStore in a cluster needs hash_tags=True"])
        if hash_tags and not {"{", "}"}.isdisjoint(prefix):
            raise ConfigError(["with hash_tags the prefix of a RedisStore must not contain braces"])
        self._client = client
        self._prefix = prefix
        self._hash_tags = hash_tags
        self._check = client.register_script(_READ + _CHECK)
        self._complete = client.register_script(_READ + _COMPLETE)
        self._fail = client.register_script(_READ + _FAIL)

    def check(self, key: Key, ttl: timedelta) -> Check:
        """See `Store`."""
        claim, names = New(key), self._names(key)
        with translating():
            if key.mark is None and self._client.set(names[0], f"claim::{claim.token}", nx=True, px=_milliseconds(ttl)):
                return claim
            verdict, *details = self._check(names, _arguments(claim, ttl))
        if _text(verdict) == "DUPLICATE":
            return Duplicate(key, _text(details[0]))
        return claim if _text(verdict) == "NEW" else InProgress(key, timedelta(milliseconds=details[0]))

    def store_result(self, claim: New, result: str | None, ttl: timedelta) -> None:
        """See `Store`."""
        result = storable_result(result)
        arguments = [*_arguments(claim, ttl), *([] if result is None else [result])]
        with translating():
            completed = self._complete(self._names(claim.key), arguments)
        if not completed:
            raise taken()

    def store_failure(self, claim: New, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        with translating():
            self._fail(self._names(claim.key), [*_arguments(claim, ttl), storable_error(error)])

    def get_result(self, key: Key) -> Record | None:
        """See `Store`."""
        with translating():
            first, other, result, error = map(_text, self._client.mget(self._names(key)))
        held = dict(_parsed(value) for value in (first, other) if value is not None)
        if "claim" in held:
            return Record(Status.IN_PROGRESS, mark=held["claim"])
        if "completed" in held:
            return Record(Status.COMPLETED, result, error, held["completed"])
        return None if error is None else Record(Status.FAILED, error=error)

    def cleanup(self) -> int:
        """See `Store`; the server does it."""
        return 0

    def _names(self, key: Key) -> list[str]:
        value = key.value
        if self._hash_tags:
            # What stands between the first pair of braces decides about the slot, unless there is nothing.
            tag = f"\\{value}" if value.startswith(("}", "\\")) else value
            return [f"{self._prefix}{kind}{{{tag}}}" for kind in _KINDS]
        escaped = f"{_ESCAPE}{value}" if value.startswith(_RESERVED) else value
        return [f"{self._prefix}{escaped}", *(f"{self._prefix}{kind}{value}" for kind in _KINDS[1:])]


def connect(url: str) -> Redis:
    """A client that waits for nothing longer than 2 s, and mends a broken connection once.

    To send a command again is harmless, even if the first one arrived: a claim is known by its token.
    """
    return Redis.from_url(
        url,
        decode_responses=True,
        socket_timeout=2,
        socket_connect_timeout=2,
        retry=Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
    )


@contextmanager
def translating() -> Iterator[None]:
    """Raise the errors that the rest of Grantwire knows in place of the client's."""
    try:
        yield
    except (RedisError, RedisClusterException) as error:
        raise translated(error) from error


def translated(error: RedisError | RedisClusterException) -> RetryableError | InternalError:
    """The error that the rest of Grantwire knows; the original is its cause."""
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, _RETRYABLE) or str(error).partition(" ")[0] in _RETRYABLE_CODES:
        level = logging.ERROR if isinstance(error, _REFUSED) else logging.WARNING
        logger.log(level, "redis unavailable", extra={"reason": reason})
        return RetryableError("temporarily unavailable, send the same request again")
    return InternalError(f"Redis refused a command: {reason}")


def _parsed(value: str) -> tuple[str, int | None]:
    """Whether it is a claim or a completed record, and its mark."""
    found = _HELD.fullmatch(value)
    if found is None:
        raise InternalError("an entry in Redis is not one of this store: does somebody else use its prefix?")
    return found[1], int(found[2]) if found[2] else None


def _milliseconds(ttl: timedelta) -> int:
    return lifetime(ttl) // timedelta(milliseconds=1)


def _arguments(claim: New, ttl: timedelta) -> list[str | int]:
    """What every script is given first."""
    return [claim.token, "" if claim.key.mark is None else str(claim.key.mark), _milliseconds(ttl)]


def _text(value: Any) -> str | None:
    """What the server sent, whether or not the client decodes it."""
    return value.decode() if isinstance(value, bytes) else value
