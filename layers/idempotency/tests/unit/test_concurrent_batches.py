"""C30: `process_batch(concurrency=n)` of the asynchronous consumer."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from grantwire_idempotency import (
    AsyncIdempotentConsumer,
    AsyncMemoryStore,
    Claim,
    Key,
    Message,
    NoMetrics,
    by_version,
    entity_key,
)
from grantwire_idempotency._internal.consumer.concurrent_batches import make_chains
from grantwire_idempotency._internal.foundation.defaults import DEFAULT_LEASE
from grantwire_idempotency.errors import ConfigError
from layers.idempotency.tests.unit.doubles import FakeContext, FakeTime


@dataclass
class Works:
    """A processor that waits until the test releases it, unless the message is in `quick`."""

    started: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    most: int = 0
    running: int = 0
    failing: frozenset[str] = frozenset()
    third_started: asyncio.Event = field(default_factory=asyncio.Event)

    async def process(self, message: Message) -> str:
        """Give way to other tasks several times, longer for an earlier message."""
        self.started.append(message.id)
        if len(self.started) == 3:
            self.third_started.set()
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(20 - len(self.started)):
                await asyncio.sleep(0)
            if message.id in self.failing:
                raise ValueError("no")
        finally:
            self.running -= 1
        self.ended.append(message.id)
        return message.id


def make_consumer(works: Works, store: AsyncMemoryStore | None = None, **options: Any) -> AsyncIdempotentConsumer:
    """Return a consumer without delays between attempts."""

    async def no_sleep(_: float) -> None: ...

    options = {"name": "consumer", "sleep": no_sleep, **options}
    return AsyncIdempotentConsumer(store or AsyncMemoryStore(), works.process, NoMetrics(), **options)


def order(identifier: str, order_id: str, version: int, group: str | None = None) -> Message:
    """Return a message about an order."""
    return Message(identifier, body=json.dumps({"id": order_id, "version": version}), group=group)


BY_ORDER = by_version(entity_key("order", "id"))


def test_messages_run_at_the_same_time_up_to_the_limit() -> None:
    """C30: and the ids of those to redeliver are in the order of the batch, not in that of their ends."""
    works = Works(failing=frozenset({"m-1", "m-4", "m-7"}))
    messages = [Message(f"m-{number}") for number in range(9)]
    failed = asyncio.run(make_consumer(works).process_batch(messages, concurrency=4))
    assert failed == ["m-1", "m-4", "m-7"]
    assert works.most == 4
    assert works.ended != sorted(works.ended)
    one_by_one = Works()
    asyncio.run(make_consumer(one_by_one).process_batch(messages))
    assert one_by_one.most == 1


def test_messages_with_one_key_keep_their_order() -> None:
    """C3, C30: no version is skipped, because none overtakes another one, and none is in progress for another one."""
    works = Works()
    messages = [order(f"{name}-{version}", name, version) for version in (1, 2, 3) for name in "abc"]
    assert asyncio.run(make_consumer(works, identify=BY_ORDER).process_batch(messages, concurrency=9)) == []
    assert works.most == 3
    for name in "abc":
        assert [ended for ended in works.ended if ended[0] == name] == [f"{name}-1", f"{name}-2", f"{name}-3"]


def test_group_is_blocked_after_a_failure() -> None:
    """C8, C30: as without concurrency; another group goes on."""
    works = Works(failing=frozenset({"m-1"}))
    messages = [Message(f"m-{number}", group="ab"[number % 2]) for number in range(6)]
    assert asyncio.run(make_consumer(works).process_batch(messages, concurrency=6)) == ["m-1", "m-3", "m-5"]
    assert works.ended == ["m-0", "m-2", "m-4"]


def test_duplicate_in_a_batch_is_recognised() -> None:
    """C8, C30: the second one waits for the first one."""
    works = Works()
    messages = [Message("m-1"), Message("m-2"), Message("m-1")]
    assert asyncio.run(make_consumer(works).process_batch(messages, concurrency=3)) == []
    assert sorted(works.ended) == ["m-1", "m-2"]


def test_message_without_a_valid_key_fails_alone() -> None:
    """C30: the key is made before the batch starts, and the error belongs to its message."""
    works = Works()
    messages = [order("m-1", "a", 1), Message("m-2", body="no JSON"), order("m-3", "a", 2)]
    failed = asyncio.run(make_consumer(works, identify=BY_ORDER).process_batch(messages, concurrency=3))
    assert failed == ["m-2"]
    assert works.ended == ["m-1", "m-3"]


def test_cancelled_batch_releases_every_key() -> None:
    """C24, C30: when the call has ended, nothing runs any more, and a redelivery runs at once."""
    store, works = AsyncMemoryStore(), Works()

    async def cancel() -> None:
        messages = [Message(f"m-{number}") for number in range(5)]
        task = asyncio.create_task(make_consumer(works, store).process_batch(messages, concurrency=3))
        await works.third_started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert works.running == 0
        for message in messages:
            assert isinstance(await store.check(Key(f"consumer:{message.id}"), DEFAULT_LEASE), Claim)

    asyncio.run(cancel())
    assert works.ended == []


def test_message_whose_work_is_cancelled_returns_alone() -> None:
    """C24, C30: the batch itself was not cancelled."""
    works = Works()

    async def process(message: Message) -> str:
        if message.id == "m-1":
            raise asyncio.CancelledError
        return await works.process(message)

    consumer = AsyncIdempotentConsumer(AsyncMemoryStore(), process, NoMetrics(), name="consumer")
    messages = [Message(f"m-{number}") for number in range(4)]
    assert asyncio.run(consumer.process_batch(messages, concurrency=2)) == ["m-1"]
    assert sorted(works.ended) == ["m-0", "m-2", "m-3"]


def test_no_message_starts_when_the_time_is_about_to_end(caplog: pytest.LogCaptureFixture) -> None:
    """C8, C30: the rest returns to the queue, with one line in the log."""
    time = FakeTime()
    works = Works()

    async def process(message: Message) -> str:
        time.now += 4
        return await works.process(message)

    async def run() -> list[str]:
        consumer = AsyncIdempotentConsumer(
            AsyncMemoryStore(clock=time.clock), process, NoMetrics(), name="consumer", clock=time.clock
        )
        messages = [Message(f"m-{number}") for number in range(6)]
        return await consumer.process_batch(messages, FakeContext(time, time.now + 8.5), concurrency=2)

    assert asyncio.run(run()) == ["m-2", "m-3", "m-4", "m-5"]
    lines = [record for record in caplog.records if record.getMessage().startswith("out of time")]
    assert [vars(line)["left"] for line in lines] == [4]


@pytest.mark.parametrize("concurrency", [0, -1, 2.0, True, None])
def test_concurrency_must_be_a_positive_integer(concurrency: Any) -> None:
    """C30: before a message is processed."""
    works = Works()
    with pytest.raises(ConfigError, match="concurrency must be an integer of at least 1"):
        asyncio.run(make_consumer(works).process_batch([Message("m-1")], concurrency=concurrency))
    assert works.started == []


@given(st.lists(st.sets(st.sampled_from("abcdefg"), max_size=3), max_size=12))
def test_chains_share_no_name_and_keep_the_order(names: list[set[str]]) -> None:
    """C30: for any keys and groups, every position is in one chain."""
    chains = make_chains(names)
    assert sorted(position for chain in chains for position in chain) == list(range(len(names)))
    assert all(chain == sorted(chain) for chain in chains)
    owners = [(name, number) for number, chain in enumerate(chains) for position in chain for name in names[position]]
    assert len(dict(owners)) == len(set(owners))
    for chain in chains:  # every position but the first is there because of a name of another one
        for position in chain[1:]:
            assert any(names[position] & names[other] for other in chain if other != position)
