"""A store in Redis or Valkey, which finds duplicates without a query to a database.

A new key without a mark is claimed by one atomic `SET NX PX`. If the key is not new, a script decides in a second round
trip, and the next checks begin with the script until one finds a new key. Every other method is one script and one
round trip, and so is the check of a key with a mark. With `fences=True` every check is a script, which also draws the
fencing number: the server's time in microseconds. `redis_requests` has the entries and the scripts.

Requirements: one primary, Redis or Valkey, with `maxmemory-policy noeviction`, because a message whose entry is evicted
runs twice. Replication is asynchronous, so a failover can lose the last claims and results, and fencing numbers can go
back by the difference of the clocks. Use PostgreSQL if that is not acceptable. Redis Cluster requires `hash_tags=True`,
which changes the names of all entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from grantwire_idempotency._internal.foundation.defaults import DEFAULT_KEY_PREFIX, DEFAULT_MAX_CONNECTIONS
from grantwire_idempotency._internal.foundation.optional import optional_package
from grantwire_idempotency._internal.stores.interface import new_claim
from grantwire_idempotency.errors import ConfigError

with optional_package("redis", used_by="RedisStore"):
    from redis import BlockingConnectionPool, Redis, RedisCluster
    from redis.asyncio import BlockingConnectionPool as AsyncBlockingConnectionPool
    from redis.asyncio import Redis as AsyncRedis
    from redis.asyncio import RedisCluster as AsyncRedisCluster
    from redis.backoff import NoBackoff
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.retry import Retry

    from grantwire_idempotency._internal.redis.errors import convert_error, wrap_exceptions
    from grantwire_idempotency._internal.redis.scripts import run_script, run_script_async, set_new, set_new_async
    from grantwire_idempotency._internal.stores.redis_requests import Requests

if TYPE_CHECKING:
    from datetime import timedelta

    from grantwire_idempotency._internal.foundation.fail_mode import FailMode
    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.stores.interface import CheckResult, Claim, Key, KeyState
    from grantwire_idempotency._internal.stores.redis_requests import Request

__all__ = ["AsyncRedisStore", "RedisStore", "connect_redis", "connect_redis_async", "convert_error", "wrap_exceptions"]

Client = TypeVar("Client")


class _Store(Generic[Client]):
    """What both stores have in common: the client, of the kind that the store requires, and the requests."""

    _client_types: ClassVar[tuple[type, ...]]
    _cluster_type: ClassVar[type]
    _required: ClassVar[str]

    def __init__(
        self,
        client: Client,
        *,
        prefix: str = DEFAULT_KEY_PREFIX,
        hash_tags: bool = False,
        fences: bool = False,
        fail_mode: FailMode | None = None,
        logger: LibraryLogger | None = None,
    ) -> None:
        name = type(self).__name__
        # An asynchronous client in a RedisStore would return a coroutine for every claim, which is truthy.
        if not isinstance(client, self._client_types):
            raise ConfigError([f"{name} requires {self._required}, not a {type(client).__name__}"])
        if isinstance(client, self._cluster_type) and not hash_tags:
            raise ConfigError([f"{name} requires hash_tags=True for a cluster client"])
        if hash_tags and not {"{", "}"}.isdisjoint(prefix):
            raise ConfigError([f"the prefix of a {name} with hash_tags must not contain braces"])
        self.fail_mode = fail_mode
        self._client = client
        self._logger = logger
        self._requests = Requests(prefix, hash_tags=hash_tags, fences=fences)


class RedisStore(_Store[Redis | RedisCluster]):
    """A thread-safe store that all processes with the same Redis share. Expiry follows the clock of the server.

    `client` is any synchronous client of redis-py. By default a client retries an unavailable server several times,
    which takes seconds. Give the client socket timeouts and a `Retry` that suit the job, or create it with
    `connect_redis`. Two stores with different prefixes are independent, unless one prefix begins with the other.

    With `fences=True` each claim has a fencing number, for a script on the server instead of a plain command.
    """

    _client_types = (Redis, RedisCluster)
    _cluster_type = RedisCluster
    _required = "a synchronous Redis client"

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """See `Store`."""
        claim = new_claim(key, token)
        entry = self._requests.claim_new_key(claim, ttl)
        if entry is not None and set_new(self._client, *entry, self._logger):
            return claim
        return self._send(self._requests.check(claim, ttl))  # type: ignore[no-any-return]

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `Store`."""
        request = self._requests.complete_only_entry(claim, result, ttl)
        if request is None or not self._send(request):
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

    def _send(self, request: Request) -> Any:
        response = run_script(self._client, request.script, request.keys, request.arguments, self._logger)
        return request.parse(response)


class AsyncRedisStore(_Store[AsyncRedis | AsyncRedisCluster]):
    """A `RedisStore` for asyncio, with any client of `redis.asyncio`."""

    _client_types = (AsyncRedis, AsyncRedisCluster)
    _cluster_type = AsyncRedisCluster
    _required = "a client of redis.asyncio"

    async def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """See `Store`."""
        claim = new_claim(key, token)
        entry = self._requests.claim_new_key(claim, ttl)
        if entry is not None and await set_new_async(self._client, *entry, self._logger):
            return claim
        return await self._send(self._requests.check(claim, ttl))  # type: ignore[no-any-return]

    async def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `Store`."""
        request = self._requests.complete_only_entry(claim, result, ttl)
        if request is None or not await self._send(request):
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

    async def _send(self, request: Request) -> Any:
        response = await run_script_async(self._client, request.script, request.keys, request.arguments, self._logger)
        return request.parse(response)


def connect_redis(url: str, *, max_connections: int = DEFAULT_MAX_CONNECTIONS) -> Redis:
    """Return a client with timeouts of 2 s that reconnects once when a connection breaks.

    It is safe to send a command again, even if the first one arrived, because the token identifies the claim. If all
    `max_connections` are in use, a thread waits for one for up to 5 s.
    """
    return Redis.from_pool(BlockingConnectionPool.from_url(url, **_client_options(Retry, max_connections)))


def connect_redis_async(url: str, *, max_connections: int = DEFAULT_MAX_CONNECTIONS) -> AsyncRedis:
    """Return a client for asyncio with the timeouts, retries and connections of `connect_redis`."""
    from redis.asyncio.retry import Retry as AsyncRetry  # noqa: PLC0415 - only for this client

    options = _client_options(AsyncRetry, max_connections)
    return AsyncRedis.from_pool(AsyncBlockingConnectionPool.from_url(url, **options))


def _client_options(retry: Any, max_connections: int) -> dict[str, Any]:
    return {
        "max_connections": max_connections,
        "timeout": 5,
        "decode_responses": True,
        "socket_timeout": 2,
        "socket_connect_timeout": 2,
        "retry": retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
    }
