"""A store in Redis or Valkey, which finds duplicates without a query to a database.

A key has up to four entries. Each has its own time to live, and the server deletes it automatically:

    <prefix><key>          a claim, `claim:<mark>:<token>`, or a completion, `completed:<mark>:<token>`
    <prefix>other:<key>    if both exist, the one that expires first; so the first entry exists while any of them does
    <prefix>result:<key>   the stored result of the completion, unless it is None
    <prefix>error:<key>    the error of the last failure

A claim without a mark is therefore one `SET NX PX`. Every other change reads two entries and is a script.

Requirements: one primary, Redis or Valkey, with `maxmemory-policy noeviction`, because a message whose entry is evicted
runs twice. Replication is asynchronous, so a failover can lose the last claims and results. Use PostgreSQL if that is
not acceptable. Redis Cluster requires `hash_tags=True`, which changes the names of all entries.
"""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire_idempotency.errors import ConfigError, InternalError, RetryableError
from grantwire_idempotency.logs import logger
from grantwire_idempotency.optional import optional_package
from grantwire_idempotency.stores.interface import (
    Claim,
    Duplicate,
    InProgress,
    KeyState,
    KeyStatus,
    claim_lost_error,
    clamp_ttl,
    truncate_error,
    validate_result,
)

with optional_package("redis", used_by="RedisStore"):
    from redis import Redis, RedisCluster
    from redis.backoff import NoBackoff
    from redis.exceptions import (
        AuthenticationError,
        AuthorizationError,
        ClusterError,
        ConnectionError,  # noqa: A004  # not a subclass of the built-in one
        OutOfMemoryError,
        ReadOnlyError,
        RedisClusterException,
        RedisError,
        TimeoutError,  # noqa: A004  # see ConnectionError
        TryAgainError,
    )
    from redis.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire_idempotency.stores.interface import CheckResult, Key

_ENTRY_KINDS = ("", "other:", "result:", "error:")
# Prefix for a key that begins like another entry's name: key "result:a" must not collide with the result of key "a".
_ESCAPE = "key:"
_RESERVED = (*_ENTRY_KINDS[1:], _ESCAPE)

_ENTRY = re.compile(r"(claim|completed):(\d*):.*", re.DOTALL)

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
# Subclasses of ConnectionError that a retry alone does not fix, so they are logged as errors.
_CREDENTIAL_ERRORS = (AuthenticationError, AuthorizationError)

# The common start of all scripts: read the claim and the completion, and define how to write them.
_READ_ENTRIES = """
local token, mark, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local entries = {}
for _, name in ipairs({KEYS[1], KEYS[2]}) do
  local value = redis.call('GET', name)
  if value then
    local kind, entry_mark, entry_token = string.match(value, '^(%a+):(%d*):(.*)$')
    local left = math.max(1, redis.call('PTTL', name))
    entries[kind] = {value = value, mark = entry_mark, token = entry_token, left = left}
  end
end
local claim, completion = entries.claim, entries.completed
local covered = completion and (mark == '' or completion.mark == '' or tonumber(mark) <= tonumber(completion.mark))
local taken = covered or (claim and claim.token ~= token)

local function write_entry(name, entry)
  if entry then
    redis.call('SET', name, entry.value, 'PX', entry.left)
  else
    redis.call('DEL', name)
  end
end

local function write_entries(first, other)
  if not first or (other and other.left > first.left) then
    first, other = other, first
  end
  write_entry(KEYS[1], first)
  write_entry(KEYS[2], other)
end
"""

_CHECK = """
if covered then
  return {'DUPLICATE', redis.call('GET', KEYS[3])}
elseif taken then
  return {'IN_PROGRESS', claim.left}
end
write_entries({value = 'claim:' .. mark .. ':' .. token, left = ttl}, completion)
return {'NEW'}
"""

_COMPLETE = """
if completion and completion.token == token then
  return 1
elseif taken then
  return 0
end
write_entries({value = 'completed:' .. mark .. ':' .. token, left = ttl})
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
  write_entries(completion)
  redis.call('SET', KEYS[4], ARGV[4], 'PX', ttl)
end
"""


class RedisStore:
    """A thread-safe store that all processes with the same Redis share. Expiry follows the clock of the server.

    By default the client retries an unavailable server ten times, which takes seconds. Give the client socket timeouts
    and a `Retry` that suit the job, or create it with `connect`. Two stores with different prefixes are independent,
    unless one prefix begins with the other.
    """

    def __init__(self, client: Redis | RedisCluster, *, prefix: str = "idempotency:", hash_tags: bool = False) -> None:
        # An asynchronous client would return a coroutine for every claim, which is truthy.
        if not isinstance(client, Redis | RedisCluster):
            raise ConfigError([f"RedisStore requires a synchronous Redis client, not a {type(client).__name__}"])
        if isinstance(client, RedisCluster) and not hash_tags:
            raise ConfigError(["RedisStore requires hash_tags=True for a cluster client"])
        if hash_tags and not {"{", "}"}.isdisjoint(prefix):
            raise ConfigError(["the prefix of a RedisStore with hash_tags must not contain braces"])
        self._client = client
        self._prefix = prefix
        self._hash_tags = hash_tags
        self._check = client.register_script(_READ_ENTRIES + _CHECK)
        self._complete = client.register_script(_READ_ENTRIES + _COMPLETE)
        self._fail = client.register_script(_READ_ENTRIES + _FAIL)

    def check(self, key: Key, ttl: timedelta) -> CheckResult:
        """See `Store`."""
        claim, names = Claim(key), self._names(key)
        with wrap_exceptions():
            if key.mark is None and self._client.set(names[0], f"claim::{claim.token}", nx=True, px=_milliseconds(ttl)):
                return claim
            decision, *details = self._check(names, _arguments(claim, ttl))
        if _text(decision) == "DUPLICATE":
            return Duplicate(key, _text(details[0]))
        return claim if _text(decision) == "NEW" else InProgress(key, timedelta(milliseconds=details[0]))

    def store_result(self, claim: Claim, result: str | None, ttl: timedelta) -> None:
        """See `Store`."""
        result = validate_result(result)
        arguments = [*_arguments(claim, ttl), *([] if result is None else [result])]
        with wrap_exceptions():
            completed = self._complete(self._names(claim.key), arguments)
        if not completed:
            raise claim_lost_error()

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        with wrap_exceptions():
            self._fail(self._names(claim.key), [*_arguments(claim, ttl), truncate_error(error)])

    def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        with wrap_exceptions():
            first, other, result, error = map(_text, self._client.mget(self._names(key)))
        marks = dict(_parse_entry(value) for value in (first, other) if value is not None)
        if "claim" in marks:
            return KeyState(KeyStatus.IN_PROGRESS, mark=marks["claim"])
        if "completed" in marks:
            return KeyState(KeyStatus.COMPLETED, result, error, marks["completed"])
        return None if error is None else KeyState(KeyStatus.FAILED, error=error)

    def cleanup(self) -> int:
        """Return 0, because the server deletes expired entries."""
        return 0

    def _names(self, key: Key) -> list[str]:
        value = key.value
        if self._hash_tags:
            # Redis hashes the text between the first pair of braces, or the whole name if that text is empty.
            tag = f"\\{value}" if value.startswith(("}", "\\")) else value
            return [f"{self._prefix}{kind}{{{tag}}}" for kind in _ENTRY_KINDS]
        escaped = f"{_ESCAPE}{value}" if value.startswith(_RESERVED) else value
        return [f"{self._prefix}{escaped}", *(f"{self._prefix}{kind}{value}" for kind in _ENTRY_KINDS[1:])]


def connect(url: str) -> Redis:
    """Return a client with timeouts of 2 s that reconnects once when a connection breaks.

    It is safe to send a command again, even if the first one arrived, because the token identifies the claim.
    """
    return Redis.from_url(
        url,
        decode_responses=True,
        socket_timeout=2,
        socket_connect_timeout=2,
        retry=Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
    )


@contextmanager
def wrap_exceptions() -> Iterator[None]:
    """Convert errors of the Redis client into errors of the library."""
    try:
        yield
    except (RedisError, RedisClusterException) as error:
        raise convert_error(error) from error


def convert_error(error: RedisError | RedisClusterException) -> RetryableError | InternalError:
    """Return RetryableError if the server is unavailable, else InternalError."""
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, _RETRYABLE) or str(error).partition(" ")[0] in _RETRYABLE_CODES:
        level = logging.ERROR if isinstance(error, _CREDENTIAL_ERRORS) else logging.WARNING
        logger.log(level, "redis unavailable", extra={"reason": reason})
        return RetryableError("temporarily unavailable, send the same request again")
    return InternalError(f"Redis rejected a command: {reason}")


def _parse_entry(value: str) -> tuple[str, int | None]:
    """Return `claim` or `completed`, and the mark."""
    match = _ENTRY.fullmatch(value)
    if match is None:
        raise InternalError("unknown entry in Redis; check that no other application uses the prefix of this store")
    return match[1], int(match[2]) if match[2] else None


def _milliseconds(ttl: timedelta) -> int:
    return clamp_ttl(ttl) // timedelta(milliseconds=1)


def _arguments(claim: Claim, ttl: timedelta) -> list[str | int]:
    """Return the arguments that all scripts begin with."""
    return [claim.token, "" if claim.key.mark is None else str(claim.key.mark), _milliseconds(ttl)]


def _text(value: Any) -> str | None:
    """Return a response as text, whether or not the client decodes responses."""
    return value.decode() if isinstance(value, bytes) else value
