"""C3, C8: consumers at the same time, on each store: threads with connections of their own, and processes."""

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
from tests.support.concurrency import at_once
from tests.support.paths import PYTHONPATH, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from grantwire_idempotency import Store
    from tests.integration.idempotency.harness import Harness, MemoryHarness, PostgresHarness, RedisHarness

ENTITY = entity_key("order", "order_id")


def message(identifier: str, **payload: Any) -> Message:
    """A message about an order."""
    return Message(identifier, body=json.dumps(payload))


def consumer_of(store: Store, process: Callable[[Message], Any], **options: Any) -> IdempotentConsumer:
    """A consumer that does not try again by itself."""
    return IdempotentConsumer(store, process, NoMetrics(), name="orders", retry=RetryPolicy(max_attempts=1), **options)


def redelivered(consumer: IdempotentConsumer, one: Message) -> Outcome:
    """What a queue does: deliver it until it is done."""
    while True:
        try:
            return consumer.process(one)
        except RequestInProgressError:
            # Somebody else is at it; let them.
            time.sleep(0)


class Suite:
    """What a consumer does with every store; each subclass has a harness of its own."""

    def test_two_versions_at_once_end_at_the_later_one(self, harness: Harness) -> None:
        """C3: workers with version 2 and 3, in any order; no stale one is run, for any of many orders."""
        applied: dict[str, list[int]] = {f"o{number}": [] for number in range(15)}

        def process(one: Message) -> None:
            payload = one.payload
            before = list(applied[payload["order_id"]])
            time.sleep(0)
            applied[payload["order_id"]] = [*before, payload["version"]]

        consumers = [consumer_of(store, process, identify=by_version(ENTITY)) for store in harness.stores(2)]
        for order in applied:
            versions = random.sample([2, 3], 2)

            def work(number: int, order: str = order, versions: list[int] = versions) -> Outcome:
                version = versions[number]
                return redelivered(consumers[number], message(f"{order}/{version}", order_id=order, version=version))

            at_once(2, work)
        assert all(versions in ([2, 3], [3]) for versions in applied.values()), applied

    def test_many_consumers_at_once_process_each_message_once(self, harness: Harness) -> None:
        """C8, 001: every one of them gets every message, in an order of its own."""
        processed: list[str] = []

        def process(one: Message) -> int:
            time.sleep(0)
            processed.append(one.id)
            return len(processed)

        messages = [message(f"m{number}") for number in range(20)]
        consumers = [consumer_of(store, process) for store in harness.stores(6)]

        def work(number: int) -> dict[str, Any]:
            mine = random.sample(messages, len(messages))
            return {one.id: redelivered(consumers[number], one).value for one in mine}

        results = at_once(6, work)
        assert Counter(processed) == Counter(one.id for one in messages)
        assert all(result == results[0] for result in results), "a duplicate gets the first result"

    def test_an_equal_timestamp_is_skipped(self, harness: Harness) -> None:
        """C3: and an earlier one; a microsecond later is new."""
        processed: list[str] = []
        (store,) = harness.stores(1)
        consumer = consumer_of(store, lambda one: processed.append(one.id), identify=by_timestamp(ENTITY, "at"))
        times = ["07:10:00Z", "07:10:00Z", "08:10:00+01:00", "07:09:59.999999Z", "07:10:00.000001Z"]
        for number, at in enumerate(times):
            consumer.process(message(f"m{number}", order_id="o1", at=f"2026-01-08T{at}"))
        assert processed == ["m0", "m4"]

    def test_of_a_batch_with_a_failed_item_only_that_one_is_retried(self, harness: Harness) -> None:
        """C8: items 1, 2 (fails) and 3; the second delivery goes to another worker."""
        processed: list[str] = []
        failing = ["2"]

        def process(one: Message) -> None:
            if one.id in failing:
                failing.remove(one.id)
                raise ValueError("no")
            processed.append(one.id)

        first, second = (consumer_of(store, process) for store in harness.stores(2))
        batch = [message("1"), message("2"), message("3")]
        assert first.process_batch(batch) == ["2"]
        assert second.process_batch(batch) == []
        assert first.process_batch(batch) == []
        assert processed == ["1", "3", "2"]

    def test_after_its_time_to_live_a_key_is_new(self, harness: Harness) -> None:
        """C3, 000: not before it, and from then on."""
        processed: list[str] = []
        (store,) = harness.stores(1)
        consumer = consumer_of(store, lambda one: processed.append(one.id), ttl=timedelta(days=7))
        consumer.process(message("m1"))
        harness.advance(timedelta(days=6))
        assert consumer.process(message("m1")).replayed
        harness.advance(timedelta(days=1, seconds=1))
        assert not consumer.process(message("m1")).replayed
        assert processed == ["m1", "m1"]


class SharedSuite(Suite):
    """What only a store that processes share can show."""

    def test_processes_share_their_work_and_survive_a_death(self, harness: Harness, tmp_path: Path) -> None:
        """C8: each message once, over three processes.

        The first is killed in the middle of m5. The others leave that alone until its claim ends; then it is processed.
        """
        effects = tmp_path / "effects"
        effects.touch()
        dying, *workers = [self._start(harness, effects, ending) for ending in ("die", "leave", "leave")]
        assert self._answers(dying) == [""]
        assert dying.returncode == -signal.SIGKILL
        assert [answer.splitlines()[-1] for answer in self._answers(*workers)] == ["left: m5", "left: m5"]
        ids = [f"m{number}" for number in range(30)]
        assert Counter(effects.read_text().split()) == Counter(set(ids) - {"m5"})
        late: list[str] = []
        (store,) = harness.stores(1)
        consumer = IdempotentConsumer(store, lambda one: late.append(one.id), NoMetrics(), name="worker")
        harness.advance(timedelta(minutes=15, seconds=1))
        assert consumer.process_batch([message(identifier) for identifier in ids]) == []
        assert late == ["m5"]

    @staticmethod
    def _answers(*workers: subprocess.Popen[str]) -> list[str]:
        """What workers say that are let go at the same time."""
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
            "tests.support.workers.idempotent_consumer",
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
    """Consumers that share a store in memory."""

    @pytest.fixture
    def harness(self, memory_harness: MemoryHarness) -> Harness:
        """Its clock is a number."""
        return memory_harness


class TestRedisStore(SharedSuite):
    """Consumers that share a Redis."""

    @pytest.fixture
    def harness(self, redis_harness: RedisHarness) -> Harness:
        """On the Valkey of all tests."""
        return redis_harness


class TestPostgresStore(SharedSuite):
    """Consumers that share a database."""

    @pytest.fixture
    def harness(self, postgres_harness: PostgresHarness) -> Harness:
        """In one database for all of these tests."""
        return postgres_harness
