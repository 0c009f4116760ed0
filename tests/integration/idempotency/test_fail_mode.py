"""C6: OPEN and CLOSED while the store is really gone, before the check and between the check and the result."""

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
    idempotent,
)
from grantwire_idempotency.errors import RequestInProgressError, RetryableError
from grantwire_idempotency.stores.redis import connect
from tests.support.plaintext import PLAINTEXT
from tests.unit.idempotency.doubles import RecordedMetrics, logged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire_idempotency import Store
    from infra.local.servers.postgres import PostgresServer
    from tests.support.valkey import ValkeyServer


class Server(Protocol):
    """Something to kill and to start again."""

    def kill(self) -> None:
        """End it without warning."""

    def start(self) -> None:
        """Return when it serves."""


class Shop:
    """A job and a consumer on a store that can be killed; what they did, and what they counted."""

    def __init__(self, store: Store, server: Server, *, durable: bool) -> None:
        self.store, self.server, self.durable = store, server, durable
        self.metrics = RecordedMetrics()
        self.sold: list[str] = []
        self.in_the_middle: Callable[[], object] = lambda: None
        # A name of its own: the server keeps the keys of other tests.
        self.name = f"shop-{uuid.uuid4().hex}"

    def sell(self, order: str) -> str:
        """The work."""
        self.in_the_middle()
        self.sold.append(order)
        return f"{order} sold"

    def job(self, fail_mode: FailMode) -> Callable[[str], str]:
        """The work as a job."""
        return idempotent(
            self.store, key=lambda order: order, fail_mode=fail_mode, name=self.name, metrics=self.metrics
        )(self.sell)

    def consumer(self, **options: Any) -> IdempotentConsumer:
        """The work as a consumer."""
        retry = RetryPolicy(max_attempts=1)
        return IdempotentConsumer(
            self.store, lambda one: self.sell(one.id), self.metrics, name=self.name, retry=retry, **options
        )


class Suite:
    """What happens when a store is gone; each subclass has a server of its own."""

    def test_open_runs_and_warns_while_the_store_is_gone(self, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
        """C6: counted; when the store is back, it guards again."""
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

    def test_closed_runs_nothing_while_the_store_is_gone(self, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
        """C6: an ERROR and a retryable error; when the store is back, the job runs, once."""
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
    def test_a_store_that_dies_during_the_work_does_not_make_it_fail(
        self, shop: Shop, fail_mode: FailMode, level: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """C6: the effect has happened, so its value is returned; a durable store keeps others off for a while."""
        job = shop.job(fail_mode)
        shop.in_the_middle = shop.server.kill
        assert job("o1") == "o1 sold"
        lines = logged(caplog, "WARNING", "ERROR")
        assert [line["level"] for line in lines if "the store did not take its result" in line["message"]] == [level]
        shop.server.start()
        shop.in_the_middle = lambda: None
        if shop.durable:
            with pytest.raises(RequestInProgressError):
                job("o1")
            assert shop.sold == ["o1"]
        assert job("o2") == "o2 sold"

    def test_a_store_that_comes_back_during_the_work_gets_its_result(self, shop: Shop) -> None:
        """C6: the connection is gone, the server is not: nothing is lost, nobody notices."""

        def restart() -> None:
            shop.server.kill()
            shop.server.start()

        job = shop.job(FailMode.CLOSED)
        shop.in_the_middle = restart
        assert [job("o1"), job("o1")] == ["o1 sold", "o1 sold"]
        assert shop.sold == ["o1"]

    def test_the_work_s_own_error_is_raised_even_if_the_store_is_gone_too(self, shop: Shop) -> None:
        """C5: the author has to see what went wrong."""

        def fail() -> None:
            shop.server.kill()
            raise ValueError("no such order")

        shop.in_the_middle = fail
        with pytest.raises(ValueError, match="no such order"):
            shop.job(FailMode.CLOSED)("o1")

    def test_a_consumer_leaves_its_messages_in_the_queue(self, shop: Shop) -> None:
        """C6, C12: CLOSED is its default; no attempt, no dead letter; afterwards each is processed once."""
        letters: list[Message] = []
        consumer = shop.consumer(dead_letter=lambda one, _: letters.append(one))
        batch = [Message("m1"), Message("m2"), Message("m3")]
        assert consumer.process_batch(batch[:1]) == []
        shop.server.kill()
        assert consumer.process_batch(batch) == ["m1", "m2", "m3"]
        shop.server.start()
        assert consumer.process_batch(batch) == []
        assert letters == []
        assert shop.sold == (["m1", "m2", "m3"] if shop.durable else ["m1", "m1", "m2", "m3"])


class TestRedisStore(Suite):
    """A Valkey that keeps nothing on disk: what it knew is gone with it."""

    @pytest.fixture
    def shop(self, private_valkey: ValkeyServer) -> Iterator[Shop]:
        """On a server of this test's own."""
        with connect(private_valkey.url) as client:
            yield Shop(RedisStore(client), private_valkey, durable=False)


class TestPostgresStore(Suite):
    """A PostgreSQL that recovers what was committed."""

    @pytest.fixture
    def shop(self, server: PostgresServer) -> Iterator[Shop]:
        """On the server that may be stopped."""
        with closing(Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": server.url()}))) as database:
            yield Shop(PostgresStore(database), server, durable=True)
        server.start()
