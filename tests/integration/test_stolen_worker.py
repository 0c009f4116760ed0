"""G10: what the NATS user of the workers can do with events, and what repairs it, as SECURITY.md says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.pull_consumer import PullConsumer
from grantwire.jetstream.settings import NatsSettings
from grantwire.jetstream.topology import TopologySettings
from grantwire.settings import load
from tests.support.lossy_stream import LossyStream
from tests.support.nats_users import configure
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from grantwire.jetstream.message import Message
    from tests.integration.conftest import Rows

pytestmark = newest_postgres


@pytest.fixture
def flow(environ: dict[str, str], rows: Rows) -> LossyStream:
    """An outbox, a stream and an inbox, after the first check."""
    flow = LossyStream(environ, rows)
    flow.relay()
    return flow


def take(flow: LossyStream, consumer: tuple[str, str], handle: Callable[[Message], Awaitable[Any]]) -> int:
    """Handle the next message of a consumer with the credentials of the workers, and return how many there were."""

    async def run() -> int:
        nats = NatsConnection(load(NatsSettings, flow.environ))
        await nats.connect()
        try:
            pulls = PullConsumer(nats, *consumer)
            await pulls.open()
            messages = await pulls.pull(1, 5)
            for message in messages:
                await handle(message)
            await nats.flush()
            return len(messages)
        finally:
            await nats.close()

    return asyncio.run(run())


def bridge(flow: LossyStream) -> tuple[str, str]:
    """Return the consumer of the bridge."""
    settings = load(TopologySettings, flow.environ).consumer
    return settings.stream, settings.durable


def terminate(message: Message) -> Awaitable[Any]:
    """Terminate a message in place of the bridge."""
    return message.term("a thief")


def assert_arrives(flow: LossyStream, events: list[str]) -> None:
    """The events are in the inbox, and the relay has nothing to repair."""
    flow.bridge()
    assert flow.arrived() == set(events)
    assert flow.relay()["put_back"] == 0


def test_acknowledged_event_is_published_again(flow: LossyStream) -> None:
    """By itself, because the inbox does not have it."""
    events = flow.publish()
    assert take(flow, bridge(flow), lambda message: message.ack()) == 1
    assert [flow.relay()["put_back"] for _ in range(2)] == [0, 1]
    assert_arrives(flow, events)


def test_terminated_event_is_a_dead_letter_until_it_is_redriven(flow: LossyStream) -> None:
    """It is not published again by itself, but it is listed, raises the alarm, and can be redriven as it is genuine."""
    events = flow.publish()
    assert take(flow, bridge(flow), terminate) == 1
    assert flow.record()["recorded"] == 1
    assert [flow.relay()["put_back"] for _ in range(3)] == [0, 0, 0]
    (letter,) = flow.rows.execute("SELECT event_id::text, status FROM notification_nats_dlq").fetchall()
    assert letter == {"event_id": events[0], "status": "OPEN"}
    flow.redrive()
    assert_arrives(flow, events)


def test_event_whose_advisory_is_taken_too_is_published_again(flow: LossyStream) -> None:
    """Without a dead letter the relay knows only that the inbox does not have the event."""
    events = flow.publish()
    assert take(flow, bridge(flow), terminate) == 1
    advisories = load(TopologySettings, flow.environ).advisories.consumers["MSG_TERMINATED"]
    assert take(flow, (advisories.stream, advisories.durable), lambda message: message.ack()) == 1
    assert sum(flow.relay()["put_back"] for _ in range(3)) == 1
    assert_arrives(flow, events)


def test_event_that_is_returned_with_a_long_delay_waits_for_a_new_consumer(flow: LossyStream) -> None:
    """The stream still has it, so it is not published again. The status counts it, and a new consumer delivers it."""
    events = flow.publish()
    assert take(flow, bridge(flow), lambda message: message.nak(delay=1000 * 3600)) == 1
    assert [flow.relay()["put_back"] for _ in range(5)] == [0] * 5
    flow.bridge()
    assert (flow.arrived(), flow.status()["waiting"]) == (set(), 1)
    flow.delete_consumer()
    configure(flow.environ)
    assert_arrives(flow, events)
