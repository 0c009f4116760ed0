"""C6: OPEN and CLOSED with a killed store, before the check and between the check and the result."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.settings import load
from grantwire_idempotency import (
    FailMode,
    IdempotentConsumer,
    Message,
    PostgresStore,
    RedisStore,
    RetryPolicy,
    connect_redis,
    idempotent,
)
from grantwire_idempotency.errors import LeaseLostError, RetryableError
from layers.idempotency.tests.unit.doubles import RecordedMetrics, logged
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire_idempotency import Store
    from infra.local.servers.postgres import PostgresServer
    from tests.support.valkey import ValkeyServer


class Server(Protocol):
    """A server that can be killed and started again."""

    def kill(self) -> None:
        """Kill the server."""

    def start(self) -> None:
        """Start the server and wait until it is ready."""


class Shop:
    """A job and a consumer with a store that can be killed; records their effects and metrics."""

    def __init__(self, store: Store, server: Server, *, durable: bool) -> None:
        self.store, self.server, self.durable = store, server, durable
        self.metrics = RecordedMetrics()
        self.sold: list[str] = []
        self.during_work: Callable[[], object] = lambda: None
        # A unique name, because the server keeps the keys of other tests.
        self.name = f"shop-{uuid.uuid4().hex}"

    def sell(self, order: str) -> str:
        """Do the work."""
        self.during_work()
        self.sold.append(order)
        return f"{order} sold"

    def job(self, fail_mode: FailMode) -> Callable[[str], str]:
        """Return a job that runs the work."""
        return idempotent(
            self.store, key=lambda order: order, fail_mode=fail_mode, name=self.name, metrics=self.metrics
        )(self.sell)

    def consumer(self, **options: Any) -> IdempotentConsumer:
        """Return a consumer that runs the work."""
        retry = RetryPolicy(max_attempts=1)
        return IdempotentConsumer(
            self.store, lambda message: self.sell(message.id), self.metrics, name=self.name, retry=retry, **options
        )


class Suite:
    """The behaviour while a store is down; each subclass provides a server."""

    def test_open_runs_and_warns_while_store_is_down(self, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
        """C6: the run is counted as unguarded; when the store is back, it guards again."""
        job = shop.job(FailMode.OPEN)
        shop.server.kill()
        assert [job("o1"), job("o1")] == ["o1 sold", "o1 sold"]
        assert shop.sold == ["o1", "o1"]
        assert shop.metrics.unguarded_runs == [shop.name] * 2
        warnings = [line["message"] for line in logged(caplog, "WARNING", "ERROR")]
        assert warnings.count("idempotency check failed, processing anyway") == 2
        shop.server.start()
        assert [job("o2"), job("o2")] == ["o2 sold", "o2 sold"]
        assert shop.sold == ["o1", "o1", "o2"]

    def test_closed_runs_nothing_while_store_is_down(self, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
        """C6: an ERROR is logged and a retryable error raised; when the store is back, the job runs once."""
        job = shop.job(FailMode.CLOSED)
        shop.server.kill()
        with pytest.raises(RetryableError, match="temporarily unavailable"):
            job("o1")
        assert shop.sold == []
        assert "idempotency check failed" in [line["message"] for line in logged(caplog, "ERROR")]
        shop.server.start()
        assert [job("o1"), job("o1")] == ["o1 sold", "o1 sold"]
        assert shop.sold == ["o1"]

    @pytest.mark.parametrize(("fail_mode", "level"), [(FailMode.OPEN, "WARNING"), (FailMode.CLOSED, "ERROR")])
    def test_run_succeeds_if_store_dies_during_work(
        self, shop: Shop, fail_mode: FailMode, level: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """C6, C20: the effect has happened, so the value is returned; the record is written when the store is back."""
        job = shop.job(fail_mode)
        shop.during_work = shop.server.kill
        assert job("o1") == "o1 sold"
        lines = logged(caplog, "WARNING", "ERROR")
        assert [
            line["level"]
            for line in lines
            if line["message"] == "could not store result, duplicate runs again after claim expires"
        ] == [level]
        shop.server.start()
        shop.during_work = lambda: None
        assert job("o1") == "o1 sold"
        assert shop.sold == ["o1"]
        assert job("o2") == "o2 sold"

    def test_result_is_stored_if_store_restarts_during_work(self, shop: Shop) -> None:
        """C6: the store reconnects and loses nothing."""

        def restart() -> None:
            shop.server.kill()
            shop.server.start()

        job = shop.job(FailMode.CLOSED)
        shop.during_work = restart
        if isinstance(self, TestRedisStore):  # this server stores nothing on disk, so the claim is gone
            with pytest.raises(LeaseLostError):
                job("o1")
            return
        assert [job("o1"), job("o1")] == ["o1 sold", "o1 sold"]
        assert shop.sold == ["o1"]

    def test_error_of_work_is_raised_even_if_store_is_down(self, shop: Shop) -> None:
        """C5: the caller gets the error of the work."""

        def fail() -> None:
            shop.server.kill()
            raise ValueError("no such order")

        shop.during_work = fail
        with pytest.raises(ValueError, match="no such order"):
            shop.job(FailMode.CLOSED)("o1")

    def test_consumer_leaves_messages_in_queue_while_store_is_down(self, shop: Shop) -> None:
        """C6, C12: CLOSED is its default: no attempt, no dead letter. Afterwards each message is processed once."""
        dead_letters: list[Message] = []
        consumer = shop.consumer(dead_letter=lambda message, _: dead_letters.append(message))
        batch = [Message("m1"), Message("m2"), Message("m3")]
        assert consumer.process_batch(batch[:1]) == []
        shop.server.kill()
        assert consumer.process_batch(batch) == ["m1", "m2", "m3"]
        shop.server.start()
        assert consumer.process_batch(batch) == []
        assert dead_letters == []
        assert shop.sold == (["m1", "m2", "m3"] if shop.durable else ["m1", "m1", "m2", "m3"])


class TestRedisStore(Suite):
    """A Valkey without persistence: a kill loses all keys."""

    @pytest.fixture
    def shop(self, private_valkey: ValkeyServer) -> Iterator[Shop]:
        """Provide a shop with its own server."""
        with connect_redis(private_valkey.url) as client:
            yield Shop(RedisStore(client), private_valkey, durable=False)


class TestPostgresStore(Suite):
    """A PostgreSQL that recovers all committed rows."""

    @pytest.fixture
    def shop(self, server: PostgresServer) -> Iterator[Shop]:
        """Provide a shop with its own server."""
        with closing(Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": server.url()}))) as database:
            yield Shop(PostgresStore(database), server, durable=True)
        server.start()
