"""A store in Redis or Valkey, which finds duplicates without a query to a database.

A key has up to four entries. Each has its own time to live, and the server deletes it automatically:

    <prefix><key>          a claim, `claim:<mark>:<token>`, or a completion, `completed:<mark>:<token>`
    <prefix>other:<key>    if both exist, the one that expires first; so the first entry exists while any of them does
    <prefix>result:<key>   the stored result of the completion, unless it is None
    <prefix>error:<key>    the error of the last failure

Every method is one script and one round trip. A check begins with the atomic `SET NX PX` of the claim. The fencing
number of a claim is the server's time in microseconds.

Requirements: one primary, Redis or Valkey, with `maxmemory-policy noeviction`, because a message whose entry is evicted
runs twice. Replication is asynchronous, so a failover can lose the last claims and results, and fencing numbers can go
back by the difference of the clocks. Use PostgreSQL if that is not acceptable. Redis Cluster requires `hash_tags=True`,
which changes the names of all entries.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from grantwire_idempotency.defaults import DEFAULT_KEY_PREFIX
from grantwire_idempotency.errors import ConfigError, InternalError
from grantwire_idempotency.optional import optional_package
from grantwire_idempotency.stores.interface import (
    Claim,
    Duplicate,
    InProgress,
    KeyState,
    KeyStatus,
    claim_lost_error,
    clamp_ttl,
    completion_ttl,
    new_claim,
    truncate_error,
    validate_result,
)

with optional_package("redis", used_by="RedisStore"):
    from redis import Redis, RedisCluster
    from redis.asyncio import Redis as AsyncRedis
    from redis.asyncio import RedisCluster as AsyncRedisCluster
    from redis.backoff import NoBackoff
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.retry import Retry

    from grantwire_idempotency.redis_errors import convert_error, wrap_exceptions
    from grantwire_idempotency.redis_scripts import FENCE, Script, run_script, run_script_async

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grantwire_idempotency.fail_mode import FailMode
    from grantwire_idempotency.logs import LibraryLogger
    from grantwire_idempotency.stores.interface import CheckResult, Key

__all__ = ["AsyncRedisStore", "RedisStore", "connect", "connect_async", "convert_error", "wrap_exceptions"]

_ENTRY_KINDS = ("", "other:", "result:", "error:")
# Prefix for a key that begins like another entry's name: key "result:a" must not collide with the result of key "a".
_ESCAPE = "key:"
_RESERVED = (*_ENTRY_KINDS[1:], _ESCAPE)

_ENTRY = re.compile(r"(claim|completed):(\d*):.*", re.DOTALL)

# The common start of all scripts: read the claim and the completion, and define how to write them.
_READ_ENTRIES = """
local mark, token = string.match(ARGV[1], '^(%d*):(.*)$')
local ttl = tonumber(ARGV[2])
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

# The first entry exists while any of them does, so a new key is claimed without reading anything.
_CLAIM_NEW_KEY = """
if redis.call('SET', KEYS[1], 'claim:' .. ARGV[1], 'NX', 'PX', ARGV[2]) then
  return {'NEW', fence, redis.call('GET', KEYS[4])}
end
"""

_CHECK = """
if covered then
  return {'DUPLICATE', redis.call('GET', KEYS[3])}
elseif taken then
  return {'IN_PROGRESS', claim.left}
end
write_entries({value = 'claim:' .. mark .. ':' .. token, left = ttl}, completion)
return {'NEW', fence, redis.call('GET', KEYS[4])}
"""

# ARGV[3]: the result; ARGV[4]: how long it is kept, if that is shorter. A claim without a mark has no completion
# beside it, so its holder completes the key without reading the other entries.
_COMPLETE_OWN_CLAIM = """
if string.byte(ARGV[1]) == 58 and redis.call('GET', KEYS[1]) == 'claim:' .. ARGV[1] then
  redis.call('SET', KEYS[1], 'completed:' .. ARGV[1], 'PX', ARGV[2])
  if ARGV[3] then
    redis.call('SET', KEYS[3], ARGV[3], 'PX', ARGV[4] or ARGV[2])
    redis.call('DEL', KEYS[4])
  else
    redis.call('DEL', KEYS[3], KEYS[4])
  end
  return 1
end
"""

_COMPLETE = """
if completion and completion.token == token then
  return 1
elseif taken then
  return 0
end
write_entries({value = 'completed:' .. mark .. ':' .. token, left = ttl})
if ARGV[3] then
  redis.call('SET', KEYS[3], ARGV[3], 'PX', ARGV[4] or ttl)
else
  redis.call('DEL', KEYS[3])
end
redis.call('DEL', KEYS[4])
return 1
"""

_FAIL = """
if not taken then
  write_entries(completion)
  redis.call('SET', KEYS[4], ARGV[3], 'PX', ttl)
end
"""

_EXTEND = """
if taken or not claim then
  return 0
end
claim.left = ttl
write_entries(claim, completion)
return 1
"""

_GET_STATE = "return redis.call('MGET', unpack(KEYS))"


_SCRIPTS = {
    "check": Script.of(FENCE + _CLAIM_NEW_KEY + _READ_ENTRIES + _CHECK),
    "complete": Script.of(_COMPLETE_OWN_CLAIM + _READ_ENTRIES + _COMPLETE),
    "fail": Script.of(_READ_ENTRIES + _FAIL),
    "extend": Script.of(_READ_ENTRIES + _EXTEND),
    "state": Script.of(_GET_STATE),
}


@dataclass(frozen=True, slots=True)
class _Request:
    """A script with its keys and arguments, and the function that reads its response."""

    script: Script
    keys: Sequence[str]
    arguments: Sequence[str | bytes]
    parse: Callable[[Any], Any]


class _Requests:
    """The requests of a store: the part that does not depend on asyncio."""

    def __init__(self, prefix: str, *, hash_tags: bool) -> None:
        self._prefix = prefix
        self._hash_tags = hash_tags

    def check(self, key: Key, ttl: timedelta, token: str | None) -> _Request:
        claim = new_claim(key, token)

        def parse(response: Any) -> CheckResult:
            decision, *details = response
            decision = _text(decision)
            if decision == "NEW":
                last_error = _text(details[1]) if len(details) > 1 else None
                return Claim(key, claim.token, details[0], last_error)
            if decision == "DUPLICATE":
                return Duplicate(key, _text(details[0]) if details else None)
            return InProgress(key, timedelta(milliseconds=details[0]))

        return _Request(_SCRIPTS["check"], self._names(key), _arguments(claim, ttl), parse)

    def store_result(self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None) -> _Request:
        kept = completion_ttl(claim.key, ttl, order_ttl)
        arguments = _arguments(claim, kept)
        if validate_result(result) is not None:
            arguments.append(str(result))
            if ttl < kept:
                arguments.append(_milliseconds(ttl))
        return _Request(_SCRIPTS["complete"], self._names(claim.key), arguments, _require_claim)

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> _Request:
        arguments = [*_arguments(claim, ttl), truncate_error(error)]
        return _Request(_SCRIPTS["fail"], self._names(claim.key), arguments, lambda _response: None)

    def extend(self, claim: Claim, ttl: timedelta) -> _Request:
        return _Request(_SCRIPTS["extend"], self._names(claim.key), _arguments(claim, ttl), _require_claim)

    def get_result(self, key: Key) -> _Request:
        return _Request(_SCRIPTS["state"], self._names(key), (), _parse_state)

    def _names(self, key: Key) -> list[str]:
        value = key.value
        if self._hash_tags:
            # Redis hashes the text between the first pair of braces, or the whole name if that text is empty.
            tag = f"\\{value}" if value.startswith(("}", "\\")) else value
            return [f"{self._prefix}{kind}{{{tag}}}" for kind in _ENTRY_KINDS]
        escaped = f"{_ESCAPE}{value}" if value.startswith(_RESERVED) else value
        return [f"{self._prefix}{escaped}", *(f"{self._prefix}{kind}{value}" for kind in _ENTRY_KINDS[1:])]


class RedisStore:
    """A thread-safe store that all processes with the same Redis share. Expiry follows the clock of the server.

    `client` is any synchronous client of redis-py. By default a client retries an unavailable server several times,
    which takes seconds. Give the client socket timeouts and a `Retry` that suit the job, or create it with `connect`.
    Two stores with different prefixes are independent, unless one prefix begins with the other.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        *,
        prefix: str = DEFAULT_KEY_PREFIX,
        hash_tags: bool = False,
        fail_mode: FailMode | None = None,
        logger: LibraryLogger | None = None,
    ) -> None:
        # An asynchronous client would return a coroutine for every claim, which is truthy.
        if not isinstance(client, Redis | RedisCluster):
            raise ConfigError([f"RedisStore requires a synchronous Redis client, not a {type(client).__name__}"])
        _check_names("RedisStore", prefix, hash_tags=hash_tags, is_cluster=isinstance(client, RedisCluster))
        self.fail_mode = fail_mode
        self._client = client
        self._logger = logger
        self._requests = _Requests(prefix, hash_tags=hash_tags)

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """See `Store`."""
        return self._send(self._requests.check(key, ttl, token))  # type: ignore[no-any-return]

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `Store`."""
        self._send(self._requests.store_result(claim, result, ttl, order_ttl))

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        self._send(self._requests.store_failure(claim, error, ttl))

    def extend(self, claim: Claim, ttl: timedelta) -> None:
        """See `Store`."""
        self._send(self._requests.extend(claim, ttl))

    def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        return self._send(self._requests.get_result(key))  # type: ignore[no-any-return]

    def cleanup(self) -> int:
        """Return 0, because the server deletes expired entries."""
        return 0

    def _send(self, request: _Request) -> Any:
        response = run_script(self._client, request.script, request.keys, request.arguments, self._logger)
        return request.parse(response)


class AsyncRedisStore:
    """A `RedisStore` for asyncio, with any client of `redis.asyncio`."""

    def __init__(
        self,
        client: AsyncRedis | AsyncRedisCluster,
        *,
        prefix: str = DEFAULT_KEY_PREFIX,
        hash_tags: bool = False,
        fail_mode: FailMode | None = None,
        logger: LibraryLogger | None = None,
    ) -> None:
        if not isinstance(client, AsyncRedis | AsyncRedisCluster):
            raise ConfigError([f"AsyncRedisStore requires a client of redis.asyncio, not a {type(client).__name__}"])
        _check_names("AsyncRedisStore", prefix, hash_tags=hash_tags, is_cluster=isinstance(client, AsyncRedisCluster))
        self.fail_mode = fail_mode
        self._client = client
        self._logger = logger
        self._requests = _Requests(prefix, hash_tags=hash_tags)

    async def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """See `Store`."""
        return await self._send(self._requests.check(key, ttl, token))  # type: ignore[no-any-return]

    async def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `Store`."""
        await self._send(self._requests.store_result(claim, result, ttl, order_ttl))

    async def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        await self._send(self._requests.store_failure(claim, error, ttl))

    async def extend(self, claim: Claim, ttl: timedelta) -> None:
        """See `Store`."""
        await self._send(self._requests.extend(claim, ttl))

    async def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        return await self._send(self._requests.get_result(key))  # type: ignore[no-any-return]

    async def cleanup(self) -> int:
        """Return 0, because the server deletes expired entries."""
        return 0

    async def _send(self, request: _Request) -> Any:
        response = await run_script_async(self._client, request.script, request.keys, request.arguments, self._logger)
        return request.parse(response)


def connect(url: str) -> Redis:
    """Return a client with timeouts of 2 s that reconnects once when a connection breaks.

    It is safe to send a command again, even if the first one arrived, because the token identifies the claim.
    """
    return Redis.from_url(url, **_client_options(Retry))


def connect_async(url: str) -> AsyncRedis:
    """Return a client for asyncio with the timeouts and retries of `connect`."""
    from redis.asyncio.retry import Retry as AsyncRetry  # noqa: PLC0415 - only for this client

    return AsyncRedis.from_url(url, **_client_options(AsyncRetry))


def _client_options(retry: Any) -> dict[str, Any]:
    return {
        "decode_responses": True,
        "socket_timeout": 2,
        "socket_connect_timeout": 2,
        "retry": retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
    }


def _check_names(store: str, prefix: str, *, hash_tags: bool, is_cluster: bool) -> None:
    if is_cluster and not hash_tags:
        raise ConfigError([f"{store} requires hash_tags=True for a cluster client"])
    if hash_tags and not {"{", "}"}.isdisjoint(prefix):
        raise ConfigError([f"the prefix of a {store} with hash_tags must not contain braces"])


def _require_claim(response: Any) -> None:
    if not response:
        raise claim_lost_error()


def _parse_state(response: Any) -> KeyState | None:
    first, other, result, error = map(_text, response)
    marks = dict(_parse_entry(value) for value in (first, other) if value is not None)
    if "claim" in marks:
        return KeyState(KeyStatus.IN_PROGRESS, mark=marks["claim"])
    if "completed" in marks:
        return KeyState(KeyStatus.COMPLETED, result, error, marks["completed"])
    return None if error is None else KeyState(KeyStatus.FAILED, error=error)


def _parse_entry(value: str) -> tuple[str, int | None]:
    """Return `claim` or `completed`, and the mark."""
    match = _ENTRY.fullmatch(value)
    if match is None:
        raise InternalError("unknown entry in Redis; check that no other application uses the prefix of this store")
    return match[1], int(match[2]) if match[2] else None


@lru_cache(maxsize=64)
def _milliseconds(ttl: timedelta) -> bytes:
    return b"%d" % (clamp_ttl(ttl) // timedelta(milliseconds=1))


def _arguments(claim: Claim, ttl: timedelta) -> list[str | bytes]:
    """Return the arguments that all scripts begin with: `mark:token`, and the time to live."""
    mark = claim.key.mark
    return [f":{claim.token}" if mark is None else f"{mark}:{claim.token}", _milliseconds(ttl)]


def _text(value: Any) -> str | None:
    """Return a response as text, whether or not the client decodes responses."""
    return value.decode() if isinstance(value, bytes) else value
