"""C4: behaviour specific to the Redis store; the conformance suite covers the rest."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from redis import Redis, RedisCluster
from redis.asyncio import Redis as AsyncRedis
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, ResponseError
from redis.retry import Retry

from grantwire_idempotency import Claim, Duplicate, InProgress, Key, KeyState, KeyStatus, RedisStore, connect_redis
from grantwire_idempotency._internal.stores.redis import convert_error
from grantwire_idempotency.errors import ConfigError, InternalError, LeaseLostError, RetryableError
from layers.idempotency.tests.integration.harness import shorten
from layers.idempotency.tests.unit.doubles import logged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire_idempotency import Store
    from tests.support.valkey import ValkeyServer

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
KEY = Key("order:create:abc-123")


@pytest.fixture
def store(valkey: Redis) -> RedisStore:
    """Return an empty store."""
    return RedisStore(valkey)


def claim_key(store: Store, key: Key = KEY, ttl: timedelta = MINUTE) -> Claim:
    """Claim the key and return the claim."""
    check = store.check(key, ttl)
    assert isinstance(check, Claim)
    return check


def entries(client: Redis, pattern: str = "*") -> dict[str, str | None]:
    """Return every entry by name; each must have a TTL."""
    names = [str(name) for name in client.scan_iter(pattern)]
    assert all(client.pttl(name) > 0 for name in names)
    return {name: cast("str | None", client.get(name)) for name in sorted(names)}


def test_entries_have_names_of_document_004(store: RedisStore, valkey: Redis) -> None:
    """C4: `idempotency:<key>` for the check and `idempotency:result:<key>` for the result, both with a TTL."""
    claim = claim_key(store, ttl=MINUTE)
    main, result = "idempotency:order:create:abc-123", "idempotency:result:order:create:abc-123"
    assert entries(valkey) == {main: f"claim:::{claim.token}"}
    assert 0 < valkey.pttl(main) <= 60_000
    store.store_result(claim, '{"id": 1}', 24 * HOUR)
    assert entries(valkey) == {main: f"completed:::{claim.token}", result: '{"id": 1}'}
    assert all(23 * 3_600_000 < valkey.pttl(name) <= 24 * 3_600_000 for name in (main, result))


def test_failure_leaves_only_its_entry(store: RedisStore, valkey: Redis) -> None:
    """A later success deletes the failure and an older result."""
    first = Key("entity", mark=1)
    store.store_result(claim_key(store, first), "one", HOUR)
    store.store_failure(claim_key(store, Key("other")), "no", HOUR)
    assert entries(valkey, "*other*") == {"idempotency:other": "failed:::no"}
    store.store_failure(claim_key(store, Key("entity", mark=2)), "no", HOUR)
    claim = claim_key(store, Key("entity", mark=2))
    store.store_result(claim, None, HOUR)
    assert entries(valkey, "*entity") == {"idempotency:entity": f"completed:2::{claim.token}"}


def test_claim_is_one_set_nx(store: RedisStore, valkey: Redis) -> None:
    """004: it is atomic and one round trip; a script draws the fencing number, if the store has any."""
    fenced = RedisStore(valkey, fences=True)
    fenced.store_result(claim_key(fenced, Key("loads the scripts")), "done", HOUR)
    store.get_result(KEY)
    claim = Claim(KEY)
    assert _count_commands(valkey, lambda: store.check(KEY, MINUTE, claim.token)) == {"set": 1}
    completed = _count_commands(valkey, lambda: store.store_result(claim, "done", HOUR))
    assert completed == {"evalsha": 1, "get": 1, "set": 2}
    claimed = _count_commands(valkey, lambda: claim_key(fenced, Key("new")))
    assert claimed == {"evalsha": 1, "time": 1, "set": 1}
    repeats = [_count_commands(valkey, lambda: store.check(KEY, MINUTE)) for _ in range(2)]
    assert repeats == [{"set": 1, "evalsha": 1, "get": 2}, {"evalsha": 1, "get": 2}]
    claims = [_count_commands(valkey, partial(claim_key, store, Key(name))) for name in ("n1", "n2")]
    assert claims == [{"evalsha": 1, "get": 1, "set": 1}, {"set": 1}]
    assert _count_commands(valkey, lambda: store.get_result(KEY)) == {"evalsha": 1, "mget": 1}
    valkey.script_flush()
    claim_key(store, Key("ordered", mark=1))
    counts = _count_commands(valkey, lambda: store.check(Key("ordered", mark=1), MINUTE))
    assert counts["evalsha"] == 1
    assert "script|load" not in counts


def test_main_entry_expires_last(store: RedisStore, valkey: Redis) -> None:
    """So a plain SET NX fails while any entry is live: a claim, a completion or a failure."""
    store.store_result(claim_key(store, Key("a", mark=1)), "one", HOUR)
    short = claim_key(store, Key("a", mark=2), MINUTE)
    assert str(valkey.get("idempotency:a")).startswith("completed:1:")
    assert valkey.get("idempotency:other:a") == f"reclaim:2::{short.token}"
    store.store_failure(short, "no", MINUTE)
    assert valkey.get("idempotency:other:a") == "failed:::no"
    long = claim_key(store, Key("a", mark=2), 2 * HOUR)
    assert valkey.get("idempotency:a") == f"reclaim:2::{long.token}"
    assert str(valkey.get("idempotency:other:a")).startswith("completed:1:")
    assert valkey.get("idempotency:third:a") == "failed:::no"
    shorten(valkey, HOUR + MINUTE)
    assert isinstance(store.check(Key("a"), MINUTE), InProgress)
    store.store_result(long, None, HOUR)
    assert entries(valkey) == {"idempotency:a": f"completed:2::{long.token}"}


def test_failure_outlives_claim_and_completion(store: RedisStore, valkey: Redis) -> None:
    """C20: a dead letter is recognised after the claim of a dead worker has expired, with all three entries."""
    store.store_result(claim_key(store, Key("a", mark=1)), "one", HOUR)
    store.store_failure(claim_key(store, Key("a", mark=2)), "dead", 9 * HOUR)
    assert claim_key(store, Key("a", mark=2), 2 * HOUR).last_error == "dead"
    assert valkey.get("idempotency:a") == "failed:::dead"
    shorten(valkey, 3 * HOUR)
    assert store.get_result(Key("a")) == KeyState(KeyStatus.FAILED, error="dead")
    assert claim_key(store, Key("a")).last_error == "dead"


@pytest.mark.parametrize("decode", [True, False])
def test_client_with_or_without_decoding_works(valkey_server: ValkeyServer, valkey: Redis, *, decode: bool) -> None:
    """The application configures the client."""
    valkey.flushall()
    with Redis.from_url(valkey_server.url, decode_responses=decode) as client:
        store = RedisStore(client)
        key = Key("schlüssel", mark=3)
        claim = claim_key(store, key)
        assert isinstance(store.check(key, MINUTE), InProgress)
        assert store.get_result(key) == KeyState(KeyStatus.IN_PROGRESS, mark=3)
        store.store_failure(claim, "größer", HOUR)
        assert store.get_result(key) == KeyState(KeyStatus.FAILED, error="größer")
        claim = claim_key(store, key)
        store.store_result(claim, "größer", HOUR)
        assert store.check(key, MINUTE) == Duplicate(key, "größer")
        with pytest.raises(LeaseLostError):
            store.store_result(Claim(key), "other", HOUR)
        assert store.get_result(key) == KeyState(KeyStatus.COMPLETED, "größer", mark=3)


def test_stores_with_different_prefixes_are_independent(valkey: Redis) -> None:
    """Two services can share a server."""
    one, two = RedisStore(valkey, prefix="one:"), RedisStore(valkey, prefix="two:")
    one.store_result(claim_key(one), "one", HOUR)
    two.store_result(claim_key(two), "two", HOUR)
    assert one.check(KEY, MINUTE) == Duplicate(KEY, "one")
    assert two.check(KEY, MINUTE) == Duplicate(KEY, "two")


def test_lost_scripts_are_loaded_again(store: RedisStore, valkey: Redis) -> None:
    """A restart, a failover or a flush deletes them."""
    claim = claim_key(store, Key("a", mark=1))
    valkey.script_flush()
    store.store_result(claim, "done", HOUR)
    valkey.script_flush()
    assert store.check(Key("a", mark=1), MINUTE) == Duplicate(Key("a", mark=1), "done")


class RepeatingClient(Redis):
    """Sends every command twice, as if the first response was lost."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send the command twice."""
        super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("key", [Key("plain"), Key("ordered", mark=7)], ids=["plain", "ordered"])
def test_every_command_is_safe_to_repeat(valkey_server: ValkeyServer, store: RedisStore, key: Key) -> None:
    """So the retries of the client are safe: the claim remains, and the result is stored once."""
    host, port = valkey_server.url.removeprefix("redis://").removesuffix("/0").split(":")
    with RepeatingClient(host=host, port=int(port)) as client:
        repeating = RedisStore(client)
        repeating.store_failure(claim_key(repeating, key), "no", HOUR)
        assert store.get_result(key) == KeyState(KeyStatus.FAILED, error="no")
        claim = claim_key(repeating, key)
        assert isinstance(repeating.check(key, MINUTE), InProgress)
        repeating.store_result(claim, "done", HOUR)
        assert repeating.check(key, MINUTE) == Duplicate(key, "done")


def test_closed_connection_is_reestablished(valkey_server: ValkeyServer, valkey: Redis) -> None:
    """The server closed it while the Lambda environment was frozen."""
    with connect_redis(valkey_server.url) as client:
        store = RedisStore(client)
        claim = claim_key(store)
        valkey.client_kill_filter(_type="normal", skipme=True)
        store.store_result(claim, "done", HOUR)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, "done")


def test_connection_broken_during_command_is_retried_once(valkey_server: ValkeyServer, valkey: Redis) -> None:
    """If the new connection breaks too, the caller gets RetryableError."""
    with connect_redis(valkey_server.url) as client:
        store = RedisStore(client)
        valkey.client_pause(60_000, all=False)
        try:
            with ThreadPoolExecutor(1) as pool:
                check = pool.submit(store.check, KEY, MINUTE)
                first = _wait_until_paused(valkey)
                valkey.client_kill_filter(_id=first)
                second = _wait_until_paused(valkey, other_than=first)
                valkey.client_unpause()
                assert isinstance(check.result(), Claim)
                valkey.client_pause(60_000, all=False)
                check = pool.submit(store.check, Key("another"), MINUTE)
                assert _wait_until_paused(valkey) == second
                valkey.client_kill_filter(_id=second)
                valkey.client_kill_filter(_id=_wait_until_paused(valkey, other_than=second))
                with pytest.raises(RetryableError):
                    check.result()
        finally:
            valkey.client_unpause()


def test_store_recovers_after_server_restart(private_valkey: ValkeyServer, caplog: pytest.LogCaptureFixture) -> None:
    """Every method raises RetryableError while the server is down, even without a connection; the reason is logged."""
    with connect_redis(private_valkey.url) as connected, connect_redis(private_valkey.url) as fresh:
        store, claim = RedisStore(connected), claim_key(RedisStore(connected), ttl=HOUR)
        private_valkey.kill()
        caplog.clear()
        for method in (*_methods(store, claim), *_methods(RedisStore(fresh), claim)):
            with pytest.raises(RetryableError, match="send the same request again"):
                method()
        lines = logged(caplog, "WARNING", "ERROR")
        assert {(line["level"], line["message"]) for line in lines} == {("WARNING", "redis unavailable")}
        assert all("ConnectionError" in line["reason"] for line in lines)
        private_valkey.start()
        with pytest.raises(LeaseLostError):  # the server stores nothing on disk
            store.store_result(claim, "done", HOUR)
        store.store_result(claim_key(store), "done", HOUR)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, "done")


def test_client_timeout_limits_wait_for_server(private_valkey: ValkeyServer) -> None:
    """The server accepts the connection but does not respond."""
    with Redis.from_url(private_valkey.url, socket_timeout=0.05, retry=Retry(NoBackoff(), 0)) as client:
        store = RedisStore(client)
        claim = claim_key(store, ttl=HOUR)
        assert private_valkey.pid is not None
        os.kill(private_valkey.pid, signal.SIGSTOP)
        try:
            for method in _methods(store, claim):
                with pytest.raises(RetryableError):
                    method()
        finally:
            os.kill(private_valkey.pid, signal.SIGCONT)
        # The frozen commands may or may not have been executed; the repeat succeeds in both cases.
        store.store_result(claim, "done", HOUR)


def test_server_that_cannot_write_is_retryable(private_valkey: ValkeyServer) -> None:
    """A server that is full, a replica, or without enough replicas has changed nothing."""
    with connect_redis(private_valkey.url) as client:
        store = RedisStore(client)
        claim = claim_key(store, ttl=HOUR)
        ordered = claim_key(store, Key("ordered", mark=1), HOUR)
        for read_only_mode in (_full, _replica, _without_replicas):
            with read_only_mode(client):
                # A full server can release a key, because that needs no memory.
                for method in _methods(store, claim)[: 3 if read_only_mode is _full else 4]:
                    with pytest.raises(RetryableError):
                        method()
            assert store.get_result(KEY) == KeyState(KeyStatus.IN_PROGRESS)
            assert store.get_result(Key("another")) is None
        store.store_result(claim, "done", HOUR)
        store.store_result(ordered, "done", HOUR)


def test_full_server_can_release_key(private_valkey: ValkeyServer) -> None:
    """Otherwise it could never free memory."""
    with connect_redis(private_valkey.url) as client:
        store = RedisStore(client)
        claim = claim_key(store, ttl=HOUR)
        with _full(client):
            store.store_failure(claim, "no", HOUR)
        assert isinstance(store.check(KEY, HOUR), Claim)


@pytest.mark.parametrize("code", ["BUSY", "MISCONF", "NOREPLICAS"])
def test_errors_without_class_are_recognised_by_code(code: str) -> None:
    """For example, a script that runs too long, or a full disk."""
    assert isinstance(convert_error(ResponseError(f"{code} try later")), RetryableError)
    assert isinstance(convert_error(ResponseError(f"ERR {code}")), InternalError)


def test_unknown_entry_is_error_and_remains(store: RedisStore, valkey: Redis) -> None:
    """Another application uses the prefix."""
    valkey.set("idempotency:text", "1")
    valkey.rpush("idempotency:list", "1")
    for key in (Key("text"), Key("text", mark=1), Key("list"), Key("list", mark=1)):
        with pytest.raises(InternalError, match="Redis rejected a command"):
            store.check(key, MINUTE)
        with pytest.raises(InternalError, match="Redis rejected a command"):
            store.store_result(Claim(key), "done", HOUR)
        with pytest.raises(InternalError, match="Redis rejected a command"):
            store.store_failure(Claim(key), "no", HOUR)
    with pytest.raises(InternalError, match="no other application uses the prefix"):
        store.get_result(Key("text"))
    assert valkey.get("idempotency:text") == "1"
    assert valkey.lrange("idempotency:list", 0, -1) == ["1"]


@pytest.mark.parametrize("value", ["x", "}", "}{", "{}", "{x}", "a}b", "\\", "\\}", "}\\", "result:x", "{result:x}"])
def test_entries_of_a_key_are_on_one_cluster_node(valkey_cluster: ValkeyServer, value: str) -> None:
    """For any braces in the key, with the cluster client, which sends each command to the node of its key."""
    with _cluster(valkey_cluster) as client:
        store = RedisStore(client, hash_tags=True)
        first, second = Key(value, mark=1), Key(value, mark=2)
        store.store_result(claim_key(store, first), "one", HOUR)
        claim = claim_key(store, second)
        assert store.get_result(first) == KeyState(KeyStatus.IN_PROGRESS, mark=2)
        store.store_failure(claim, "no", HOUR)
        assert store.get_result(first) == KeyState(KeyStatus.COMPLETED, "one", "no", 1)
        assert store.check(Key(value), MINUTE) == Duplicate(Key(value), "one")
        names = list(client.scan_iter("*"))
        assert len(names) == 3
        assert len({client.cluster_keyslot(name) for name in names}) == 1


def test_cluster_client_requires_hash_tags(valkey_cluster: ValkeyServer) -> None:
    """Otherwise the entries of a key are on different nodes, and no script can read both."""
    with _cluster(valkey_cluster) as client, pytest.raises(ConfigError, match="requires hash_tags=True"):
        RedisStore(client)
    with connect_redis(valkey_cluster.url) as direct, pytest.raises(InternalError, match="ClusterCrossSlotError"):
        RedisStore(direct).check(Key("a", mark=1), MINUTE)


def test_unavailable_cluster_is_retryable(valkey_cluster: ValkeyServer) -> None:
    """One node is down, or all are, which raises another error class."""
    with connect_redis(valkey_cluster.url) as client:
        store = RedisStore(client, hash_tags=True)
        claim = claim_key(store)
        # Keep one slot: a cluster without slots takes seconds to recover.
        client.execute_command("CLUSTER", "DELSLOTSRANGE", 0, 16382)
        try:
            for method in _methods(store, claim):
                with pytest.raises(RetryableError):
                    method()
        finally:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16382)
        store.store_result(claim, "done", HOUR)
    assert isinstance(convert_error(RedisClusterException("cannot be connected")), RetryableError)


def test_invalid_argument_raises_config_error(valkey: Redis) -> None:
    """Creating the store validates its arguments."""
    for client in (None, AsyncRedis()):
        with pytest.raises(ConfigError, match="RedisStore requires a synchronous Redis client"):
            RedisStore(cast("Redis", client))
    for prefix in ("a{b:", "a}b:", "{a}:"):
        with pytest.raises(ConfigError, match="must not contain braces"):
            RedisStore(valkey, prefix=prefix, hash_tags=True)
    RedisStore(valkey, prefix="{a}:")


def _methods(store: Store, claim: Claim) -> list[Callable[[], object]]:
    """Return a call of every method; those that change something come first."""
    return [
        lambda: store.check(Key("another", mark=claim.key.mark), MINUTE),
        lambda: store.check(Key("another", mark=1), MINUTE),
        lambda: store.store_result(claim, "done", HOUR),
        lambda: store.store_failure(claim, "no", HOUR),
        lambda: store.get_result(claim.key),
    ]


def _wait_until_paused(client: Redis, other_than: str | None = None) -> str:
    """Wait until a connection is blocked by CLIENT PAUSE, and return its id."""
    deadline = time.monotonic() + 60
    while True:
        blocked = {str(entry["id"]) for entry in client.client_list() if "b" in entry["flags"]} - {other_than}
        if blocked:
            return str(blocked.pop())
        assert time.monotonic() < deadline, "no connection is blocked"
        time.sleep(0.005)


def _count_commands(client: Redis, work: Callable[[], object]) -> dict[str, int]:
    """Return how often the server executed each command."""
    client.config_resetstat()
    work()
    stats = cast("dict[str, dict[str, int]]", client.info("commandstats"))
    counts = {name.removeprefix("cmdstat_"): values["calls"] for name, values in stats.items()}
    return {name: calls for name, calls in counts.items() if name not in {"config|resetstat", "info"}}


@contextmanager
def _cluster(server: ValkeyServer) -> Iterator[RedisCluster]:
    client = RedisCluster.from_url(server.url, decode_responses=True, socket_timeout=2, retry=Retry(NoBackoff(), 0))
    client.flushall()
    yield client
    client.close()


@contextmanager
def _full(client: Redis) -> Iterator[None]:
    client.config_set("maxmemory", 1)
    yield
    client.config_set("maxmemory", 0)


@contextmanager
def _replica(client: Redis) -> Iterator[None]:
    client.replicaof("127.0.0.1", "1")
    yield
    client.replicaof("NO", "ONE")


@contextmanager
def _without_replicas(client: Redis) -> Iterator[None]:
    client.config_set("min-replicas-to-write", 1)
    yield
    client.config_set("min-replicas-to-write", 0)
