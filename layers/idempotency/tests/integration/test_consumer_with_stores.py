"""C3, C8: concurrent consumers with each store, in threads with their own connections and in processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_idempotency import (
    IdempotentConsumer,
    Message,
    NoMetrics,
    Outcome,
    RetryPolicy,
    by_timestamp,
    by_version,
    entity_key,
)
from grantwire_idempotency.errors import RequestInProgressError
from tests.support.concurrency import run_concurrently
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from grantwire_idempotency import Store
    from layers.idempotency.tests.integration.harness import Harness, MemoryHarness, PostgresHarness, RedisHarness

ENTITY = entity_key("order", "order_id")


def make_message(identifier: str, **payload: Any) -> Message:
    """Return a message about an order."""
    return Message(identifier, body=json.dumps(payload))


def create_consumer(store: Store, process: Callable[[Message], Any], **options: Any) -> IdempotentConsumer:
    """Return a consumer without retries."""
    return IdempotentConsumer(store, process, NoMetrics(), name="orders", retry=RetryPolicy(max_attempts=1), **options)


def redeliver_until_done(consumer: IdempotentConsumer, message: Message) -> Outcome:
    """Redeliver the message until it is processed, like a queue."""
    while True:
        try:
            return consumer.process(message)
        except RequestInProgressError:
            # Another consumer is processing it.
            time.sleep(0)


class Suite:
    """The behaviour of a consumer with any store; each subclass provides a harness."""

    def test_concurrent_versions_end_with_the_later_one(self, harness: Harness) -> None:
        """C3: workers process versions 2 and 3 in any order; version 2 never runs after version 3."""
        applied: dict[str, list[int]] = {f"o{number}": [] for number in range(15)}

        def process(message: Message) -> None:
            payload = message.payload
            before = list(applied[payload["order_id"]])
            time.sleep(0)
            applied[payload["order_id"]] = [*before, payload["version"]]

        consumers = [create_consumer(store, process, identify=by_version(ENTITY)) for store in harness.stores(2)]
        for order in applied:
            versions = random.sample([2, 3], 2)

            def work(number: int, order: str = order, versions: list[int] = versions) -> Outcome:
                version = versions[number]
                return redeliver_until_done(
                    consumers[number], make_message(f"{order}/{version}", order_id=order, version=version)
                )

            run_concurrently(2, work)
        assert all(versions in ([2, 3], [3]) for versions in applied.values()), applied

    def test_concurrent_consumers_process_each_message_once(self, harness: Harness) -> None:
        """C8, 001: every consumer gets every message in a random order."""
        processed: list[str] = []

        def process(message: Message) -> int:
            time.sleep(0)
            processed.append(message.id)
            return len(processed)

        messages = [make_message(f"m{number}") for number in range(20)]
        consumers = [create_consumer(store, process) for store in harness.stores(6)]

        def work(number: int) -> dict[str, Any]:
            shuffled = random.sample(messages, len(messages))
            return {message.id: redeliver_until_done(consumers[number], message).value for message in shuffled}

        results = run_concurrently(6, work)
        assert Counter(processed) == Counter(message.id for message in messages)
        assert all(result == results[0] for result in results), "a duplicate returns the stored result"

    def test_earlier_or_equal_timestamp_is_skipped(self, harness: Harness) -> None:
        """C3: a message that is one microsecond later is new."""
        processed: list[str] = []
        (store,) = harness.stores(1)
        consumer = create_consumer(
            store, lambda message: processed.append(message.id), identify=by_timestamp(ENTITY, "at")
        )
        times = ["07:10:00Z", "07:10:00Z", "08:10:00+01:00", "07:09:59.999999Z", "07:10:00.000001Z"]
        for number, at in enumerate(times):
            consumer.process(make_message(f"m{number}", order_id="o1", at=f"2026-01-08T{at}"))
        assert processed == ["m0", "m4"]

    def test_redelivered_batch_runs_only_failed_message(self, harness: Harness) -> None:
        """C8: of messages 1, 2 (fails) and 3, a redelivery to another worker runs only 2."""
        processed: list[str] = []
        failing = ["2"]

        def process(message: Message) -> None:
            if message.id in failing:
                failing.remove(message.id)
                raise ValueError("no")
            processed.append(message.id)

        first, second = (create_consumer(store, process) for store in harness.stores(2))
        batch = [make_message("1"), make_message("2"), make_message("3")]
        assert first.process_batch(batch) == ["2"]
        assert second.process_batch(batch) == []
        assert first.process_batch(batch) == []
        assert processed == ["1", "3", "2"]

    def test_key_is_new_after_ttl(self, harness: Harness) -> None:
        """C3, 000: it is a duplicate until then."""
        processed: list[str] = []
        (store,) = harness.stores(1)
        consumer = create_consumer(store, lambda message: processed.append(message.id), ttl=timedelta(days=7))
        consumer.process(make_message("m1"))
        harness.advance(timedelta(days=6))
        assert consumer.process(make_message("m1")).replayed
        harness.advance(timedelta(days=1, seconds=1))
        assert not consumer.process(make_message("m1")).replayed
        assert processed == ["m1", "m1"]


class SharedSuite(Suite):
    """The behaviour of consumers in several processes that share a store."""

    def test_processes_process_each_message_once_despite_kill(self, harness: Harness, tmp_path: Path) -> None:
        """C8: three processes process each message once.

        The first process is killed while it processes m5. The others process m5 only after its claim has
        expired.
        """
        effects = tmp_path / "effects"
        effects.touch()
        dying, *workers = [self._start(harness, effects, ending) for ending in ("die", "leave", "leave")]
        assert self._run_together(dying) == [""]
        assert dying.returncode == -signal.SIGKILL
        assert [output.splitlines()[-1] for output in self._run_together(*workers)] == ["left: m5", "left: m5"]
        ids = [f"m{number}" for number in range(30)]
        assert Counter(effects.read_text().split()) == Counter(set(ids) - {"m5"})
        late: list[str] = []
        (store,) = harness.stores(1)
        consumer = IdempotentConsumer(store, lambda message: late.append(message.id), NoMetrics(), name="worker")
        harness.advance(timedelta(minutes=15, seconds=1))
        assert consumer.process_batch([make_message(identifier) for identifier in ids]) == []
        assert late == ["m5"]

    @staticmethod
    def _run_together(*workers: subprocess.Popen[str]) -> list[str]:
        """Release all workers at the same time and return their output."""
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        return [worker.communicate(timeout=30)[0] for worker in workers]

    @staticmethod
    def _start(harness: Harness, effects: Path, ending: str) -> subprocess.Popen[str]:
        command = [
            "layers.idempotency.tests.support.idempotent_consumer",
            harness.name,
            harness.url,
            str(effects),
            "30",
            "m5",
            ending,
        ]
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


class TestMemoryStore(Suite):
    """Consumers that share a memory store."""

    @pytest.fixture
    def harness(self, memory_harness: MemoryHarness) -> Harness:
        """Provide the stores."""
        return memory_harness


class TestRedisStore(SharedSuite):
    """Consumers that share a Redis server."""

    @pytest.fixture
    def harness(self, redis_harness: RedisHarness) -> Harness:
        """Provide the stores."""
        return redis_harness


@newest_postgres
class TestPostgresStore(SharedSuite):
    """Consumers that share a database."""

    @pytest.fixture
    def harness(self, postgres_harness: PostgresHarness) -> Harness:
        """Provide the stores."""
        return postgres_harness
