"""C4: what is particular to the store in Redis; the rest is in the conformance suite of all stores."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from redis import Redis, RedisCluster
from redis.asyncio import Redis as AsyncRedis
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, ResponseError
from redis.retry import Retry

from grantwire_idempotency import Claim, Duplicate, InProgress, Key, KeyState, KeyStatus, RedisStore
from grantwire_idempotency.errors import ConfigError, InternalError, LeaseLostError, RetryableError
from grantwire_idempotency.stores.redis import connect, convert_error
from tests.integration.idempotency.harness import shorten
from tests.unit.idempotency.doubles import logged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire_idempotency.stores.interface import Store
    from tests.support.valkey import ValkeyServer

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
KEY = Key("order:create:abc-123")


@pytest.fixture
def store(valkey: Redis) -> RedisStore:
    """A store without keys."""
    return RedisStore(valkey)


def claimed(store: Store, key: Key = KEY, ttl: timedelta = MINUTE) -> Claim:
    """A claim, which must be granted."""
    check = store.check(key, ttl)
    assert isinstance(check, Claim)
    return check


def entries(client: Redis, pattern: str = "*") -> dict[str, str | None]:
    """Every entry, by name; each must end by itself."""
    names = [str(name) for name in client.scan_iter(pattern)]
    assert all(client.pttl(name) > 0 for name in names)
    return {name: cast("str | None", client.get(name)) for name in sorted(names)}


def test_the_entries_have_the_names_of_document_004(store: RedisStore, valkey: Redis) -> None:
    """C4: `idempotency:<key>` for the check and `idempotency:result:<key>` for the result, both with a time to live."""
    claim = claimed(store, ttl=MINUTE)
    main, result = "idempotency:order:create:abc-123", "idempotency:result:order:create:abc-123"
    assert entries(valkey) == {main: f"claim::{claim.token}"}
    assert 0 < valkey.pttl(main) <= 60_000
    store.store_result(claim, '{"id": 1}', 24 * HOUR)
    assert entries(valkey) == {main: f"completed::{claim.token}", result: '{"id": 1}'}
    assert all(23 * 3_600_000 < valkey.pttl(name) <= 24 * 3_600_000 for name in (main, result))


def test_a_failure_leaves_its_error_alone(store: RedisStore, valkey: Redis) -> None:
    """And a success after it leaves no trace of it, nor of a result before it."""
    first = Key("entity", mark=1)
    store.store_result(claimed(store, first), "one", HOUR)
    store.store_failure(claimed(store, Key("other")), "no", HOUR)
    assert entries(valkey, "*other*") == {"idempotency:error:other": "no"}
    store.store_failure(claimed(store, Key("entity", mark=2)), "no", HOUR)
    claim = claimed(store, Key("entity", mark=2))
    store.store_result(claim, None, HOUR)
    assert entries(valkey, "*entity") == {"idempotency:entity": f"completed:2:{claim.token}"}


def test_a_claim_is_one_set_nx(store: RedisStore, valkey: Redis) -> None:
    """004: atomic, and one round trip; only what looks at two entries is a script."""
    assert _commands(valkey, lambda: claimed(store)) == {"set": 1}
    assert _commands(valkey, lambda: store.get_result(KEY)) == {"mget": 1}
    valkey.script_flush()
    claimed(store, Key("ordered", mark=1))
    asked = _commands(valkey, lambda: store.check(Key("ordered", mark=1), MINUTE))
    assert asked["evalsha"] == 1
    assert "script|load" not in asked


def test_the_later_end_is_under_the_key_itself(store: RedisStore, valkey: Redis) -> None:
    """So that a plain SET NX finds something whenever anything counts."""
    store.store_result(claimed(store, Key("a", mark=1)), "one", HOUR)
    short = claimed(store, Key("a", mark=2), MINUTE)
    assert str(valkey.get("idempotency:a")).startswith("completed:1:")
    assert valkey.get("idempotency:other:a") == f"claim:2:{short.token}"
    store.store_failure(short, "no", MINUTE)
    assert not valkey.exists("idempotency:other:a")
    long = claimed(store, Key("a", mark=2), 2 * HOUR)
    assert valkey.get("idempotency:a") == f"claim:2:{long.token}"
    assert str(valkey.get("idempotency:other:a")).startswith("completed:1:")
    shorten(valkey, HOUR + MINUTE)
    assert isinstance(store.check(Key("a"), MINUTE), InProgress)


@pytest.mark.parametrize("decode", [True, False])
def test_a_client_may_decode_or_not(valkey_server: ValkeyServer, valkey: Redis, *, decode: bool) -> None:
    """The client is the author's."""
    valkey.flushall()
    with Redis.from_url(valkey_server.url, decode_responses=decode) as client:
        store = RedisStore(client)
        key = Key("schlüssel", mark=3)
        claim = claimed(store, key)
        assert isinstance(store.check(key, MINUTE), InProgress)
        assert store.get_result(key) == KeyState(KeyStatus.IN_PROGRESS, mark=3)
        store.store_failure(claim, "größer", HOUR)
        assert store.get_result(key) == KeyState(KeyStatus.FAILED, error="größer")
        claim = claimed(store, key)
        store.store_result(claim, "größer", HOUR)
        assert store.check(key, MINUTE) == Duplicate(key, "größer")
        with pytest.raises(LeaseLostError):
            store.store_result(Claim(key), "other", HOUR)
        assert store.get_result(key) == KeyState(KeyStatus.COMPLETED, "größer", mark=3)


def test_stores_with_different_prefixes_know_nothing_of_each_other(valkey: Redis) -> None:
    """Two services on one server."""
    one, two = RedisStore(valkey, prefix="one:"), RedisStore(valkey, prefix="two:")
    one.store_result(claimed(one), "one", HOUR)
    two.store_result(claimed(two), "two", HOUR)
    assert one.check(KEY, MINUTE) == Duplicate(KEY, "one")
    assert two.check(KEY, MINUTE) == Duplicate(KEY, "two")


def test_scripts_that_the_server_forgot_are_sent_again(store: RedisStore, valkey: Redis) -> None:
    """A restart, a failover or a flush takes them away."""
    claim = claimed(store, Key("a", mark=1))
    valkey.script_flush()
    store.store_result(claim, "done", HOUR)
    valkey.script_flush()
    assert store.check(Key("a", mark=1), MINUTE) == Duplicate(Key("a", mark=1), "done")


class SentTwice(Redis):
    """Every answer is lost once, after the server has done what it was told."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Say it, and say it again."""
        super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("key", [Key("plain"), Key("ordered", mark=7)], ids=["plain", "ordered"])
def test_a_command_whose_answer_was_lost_may_be_sent_again(
    valkey_server: ValkeyServer, store: RedisStore, key: Key
) -> None:
    """That is what makes a client's own retries safe: the claim is still mine, the result is stored once."""
    host, port = valkey_server.url.removeprefix("redis://").removesuffix("/0").split(":")
    with SentTwice(host=host, port=int(port)) as client:
        again = RedisStore(client)
        again.store_failure(claimed(again, key), "no", HOUR)
        assert store.get_result(key) == KeyState(KeyStatus.FAILED, error="no")
        claim = claimed(again, key)
        assert isinstance(again.check(key, MINUTE), InProgress)
        again.store_result(claim, "done", HOUR)
        assert again.check(key, MINUTE) == Duplicate(key, "done")


def test_a_connection_that_was_closed_is_made_again(valkey_server: ValkeyServer, valkey: Redis) -> None:
    """The sandbox was frozen, the server let go: the next message does not notice."""
    with connect(valkey_server.url) as client:
        store = RedisStore(client)
        claim = claimed(store)
        valkey.client_kill_filter(_type="normal", skipme=True)
        store.store_result(claim, "done", HOUR)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, "done")


def test_a_connection_that_breaks_in_mid_command_is_mended_once(valkey_server: ValkeyServer, valkey: Redis) -> None:
    """The command is sent again over a new one; when that breaks too, the caller is told."""
    with connect(valkey_server.url) as client:
        store = RedisStore(client)
        valkey.client_pause(60_000, all=False)
        try:
            with ThreadPoolExecutor(1) as pool:
                check = pool.submit(store.check, KEY, MINUTE)
                first = _until_paused(valkey)
                valkey.client_kill_filter(_id=first)
                second = _until_paused(valkey, other_than=first)
                valkey.client_unpause()
                assert isinstance(check.result(), Claim)
                valkey.client_pause(60_000, all=False)
                check = pool.submit(store.check, Key("another"), MINUTE)
                assert _until_paused(valkey) == second
                valkey.client_kill_filter(_id=second)
                valkey.client_kill_filter(_id=_until_paused(valkey, other_than=second))
                with pytest.raises(RetryableError):
                    check.result()
        finally:
            valkey.client_unpause()


def test_while_the_server_is_away_every_method_says_so_and_then_works_again(
    private_valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed and started again: RetryableError meanwhile, whether or not there was a connection; the log says why."""
    with connect(private_valkey.url) as connected, connect(private_valkey.url) as fresh:
        store, claim = RedisStore(connected), claimed(RedisStore(connected), ttl=HOUR)
        private_valkey.kill()
        caplog.clear()
        for method in (*_methods(store, claim), *_methods(RedisStore(fresh), claim)):
            with pytest.raises(RetryableError, match="send the same request again"):
                method()
        lines = logged(caplog, "WARNING", "ERROR")
        assert {(line["level"], line["message"]) for line in lines} == {("WARNING", "redis unavailable")}
        assert all("ConnectionError" in line["reason"] for line in lines)
        private_valkey.start()
        store.store_result(claim, "done", HOUR)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, "done")


def test_a_server_that_has_stopped_answering_is_not_waited_for(private_valkey: ValkeyServer) -> None:
    """Only the client's own timeout can tell."""
    with Redis.from_url(private_valkey.url, socket_timeout=0.05, retry=Retry(NoBackoff(), 0)) as client:
        store = RedisStore(client)
        claim = claimed(store, ttl=HOUR)
        assert private_valkey.pid is not None
        os.kill(private_valkey.pid, signal.SIGSTOP)
        try:
            for method in _methods(store, claim):
                with pytest.raises(RetryableError):
                    method()
        finally:
            os.kill(private_valkey.pid, signal.SIGCONT)
        # Whether the frozen commands were carried out after all does not matter: the claim decides.
        store.store_result(claim, "done", HOUR)


def test_a_server_that_cannot_write_now_is_temporary(private_valkey: ValkeyServer) -> None:
    """Full, a replica after a failover, or without enough replicas: nothing was changed, a later try may succeed."""
    with connect(private_valkey.url) as client:
        store = RedisStore(client)
        claim = claimed(store, ttl=HOUR)
        ordered = claimed(store, Key("ordered", mark=1), HOUR)
        for refusing in (_full, _replica, _lonely):
            with refusing(client):
                # To release a key needs no memory: a full server takes that.
                for method in _methods(store, claim)[: 3 if refusing is _full else 4]:
                    with pytest.raises(RetryableError):
                        method()
            assert store.get_result(KEY) == KeyState(KeyStatus.IN_PROGRESS)
            assert store.get_result(Key("another")) is None
        store.store_result(claim, "done", HOUR)
        store.store_result(ordered, "done", HOUR)


def test_a_full_server_still_lets_a_key_go(private_valkey: ValkeyServer) -> None:
    """Otherwise it could never become less full."""
    with connect(private_valkey.url) as client:
        store = RedisStore(client)
        claim = claimed(store, ttl=HOUR)
        with _full(client):
            store.store_failure(claim, "no", HOUR)
        assert isinstance(store.check(KEY, HOUR), Claim)


def test_a_wrong_password_is_loud(private_valkey: ValkeyServer, caplog: pytest.LogCaptureFixture) -> None:
    """Waiting will not mend it, but nothing is wrong with the message either."""
    with connect(private_valkey.url) as client:
        client.config_set("requirepass", "secret")
    with connect(private_valkey.url) as client:
        caplog.clear()
        with pytest.raises(RetryableError):
            RedisStore(client).check(KEY, MINUTE)
    (line,) = logged(caplog, "WARNING", "ERROR")
    assert (line["level"], line["message"]) == ("ERROR", "redis unavailable")
    assert KEY.value not in str(line)


@pytest.mark.parametrize("code", ["BUSY", "MISCONF", "NOREPLICAS"])
def test_what_the_client_has_no_class_for_is_known_by_its_code(code: str) -> None:
    """A script that runs too long, a disk that is full."""
    assert isinstance(convert_error(ResponseError(f"{code} try later")), RetryableError)
    assert isinstance(convert_error(ResponseError(f"ERR {code}")), InternalError)


def test_a_foreign_entry_is_an_error_and_stays(store: RedisStore, valkey: Redis) -> None:
    """Somebody else uses the prefix: better loud than wrong."""
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


def test_what_the_server_forbids_is_an_error(private_valkey: ValkeyServer) -> None:
    """No permission: a bug of the installation, which no retry mends."""
    with connect(private_valkey.url) as client:
        client.execute_command("ACL", "SETUSER", "default", "-set")
        with pytest.raises(InternalError, match="NoPermissionError"):
            RedisStore(client).check(KEY, MINUTE)


@pytest.mark.parametrize("value", ["x", "}", "}{", "{}", "{x}", "a}b", "\\", "\\}", "}\\", "result:x", "{result:x}"])
def test_all_entries_of_a_key_are_on_one_node(valkey_cluster: ValkeyServer, value: str) -> None:
    """Whatever braces the key has itself; with the cluster's own client, which sends each command to its node."""
    with _cluster(valkey_cluster) as client:
        store = RedisStore(client, hash_tags=True)
        first, second = Key(value, mark=1), Key(value, mark=2)
        store.store_result(claimed(store, first), "one", HOUR)
        claim = claimed(store, second)
        assert store.get_result(first) == KeyState(KeyStatus.IN_PROGRESS, mark=2)
        store.store_failure(claim, "no", HOUR)
        assert store.get_result(first) == KeyState(KeyStatus.COMPLETED, "one", "no", 1)
        assert store.check(Key(value), MINUTE) == Duplicate(Key(value), "one")
        names = list(client.scan_iter("*"))
        assert len(names) == 3
        assert len({client.cluster_keyslot(name) for name in names}) == 1


def test_in_a_cluster_without_hash_tags_is_an_error(valkey_cluster: ValkeyServer) -> None:
    """The entries of a key are on different nodes: no script can look at both."""
    with _cluster(valkey_cluster) as client, pytest.raises(ConfigError, match="requires hash_tags=True"):
        RedisStore(client)
    with connect(valkey_cluster.url) as direct, pytest.raises(InternalError, match="ClusterCrossSlotError"):
        RedisStore(direct).check(Key("a", mark=1), MINUTE)


def test_a_cluster_that_is_away_is_temporary(valkey_cluster: ValkeyServer) -> None:
    """A key whose node is gone; and no node at all, which the cluster's own client has a word of its own for."""
    with connect(valkey_cluster.url) as client:
        store = RedisStore(client, hash_tags=True)
        claim = claimed(store)
        # All slots but one: a cluster that has lost everything needs seconds to come back.
        client.execute_command("CLUSTER", "DELSLOTSRANGE", 0, 16382)
        try:
            for method in _methods(store, claim):
                with pytest.raises(RetryableError):
                    method()
        finally:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16382)
        store.store_result(claim, "done", HOUR)
    assert isinstance(convert_error(RedisClusterException("cannot be connected")), RetryableError)


def test_wiring_mistakes_are_found_when_the_store_is_made(valkey: Redis) -> None:
    """Not when the first message comes."""
    for client in (None, AsyncRedis()):
        with pytest.raises(ConfigError, match="RedisStore requires a synchronous Redis client"):
            RedisStore(cast("Redis", client))
    for prefix in ("a{b:", "a}b:", "{a}:"):
        with pytest.raises(ConfigError, match="must not contain braces"):
            RedisStore(valkey, prefix=prefix, hash_tags=True)
    RedisStore(valkey, prefix="{a}:")


def _methods(store: Store, claim: Claim) -> list[Callable[[], object]]:
    """Everything that one can ask of a store; what changes something comes first."""
    return [
        lambda: store.check(Key("another", mark=claim.key.mark), MINUTE),
        lambda: store.check(Key("another", mark=1), MINUTE),
        lambda: store.store_result(claim, "done", HOUR),
        lambda: store.store_failure(claim, "no", HOUR),
        lambda: store.get_result(claim.key),
    ]


def _until_paused(client: Redis, other_than: str | None = None) -> str:
    """The connection that waits for the server to take its command, when there is one."""
    deadline = time.monotonic() + 10
    while True:
        waiting = {str(found["id"]) for found in client.client_list() if "b" in found["flags"]} - {other_than}
        if waiting:
            return str(waiting.pop())
        assert time.monotonic() < deadline, "nobody came to wait"
        time.sleep(0.005)


def _commands(client: Redis, work: Callable[[], object]) -> dict[str, int]:
    """What the server was asked to do, and how often."""
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
def _lonely(client: Redis) -> Iterator[None]:
    client.config_set("min-replicas-to-write", 1)
    yield
    client.config_set("min-replicas-to-write", 0)
