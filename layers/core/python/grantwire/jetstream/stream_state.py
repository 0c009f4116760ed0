"""What a stream has, and what its consumer will still deliver, to compare it with what was published (W1)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from nats.js.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from nats.js.api import ConsumerInfo, SequenceInfo, StreamConfig

    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.message import StoredMessage
    from grantwire.jetstream.topology import TopologySettings

# Messages that are read at the same time.
_CONCURRENT_READS = 100


class StreamState(NamedTuple):
    """The state of the event stream.

    `created_at` identifies its generation: a stream that was deleted and created again has another one. The consumer
    does not deliver messages up to `passed` again; 0 if there is no consumer, because a new one begins with the first
    message. `max_age` is None if messages stay. `is_limited` means that old messages may also leave the stream because
    of their number or size. `leader` is the server that has the stream, in a cluster.
    """

    created_at: datetime | None
    first_sequence: int
    last_sequence: int
    deleted_messages: int
    max_age: timedelta | None
    is_limited: bool
    passed: int
    leader: str | None


async def read_stream_state(connection: NatsConnection, topology: TopologySettings) -> StreamState | None:
    """Return the state of the event stream, or None if it does not exist; raise RetryableError if NATS is unavailable.

    The consumer is read first: what it had passed, the stream had.
    """
    with connection.wrap_exceptions():
        consumer = await _find_consumer(connection, topology.consumer.stream, topology.consumer.durable)
        try:
            info = await connection.jetstream.stream_info(topology.events.stream)
        except NotFoundError:
            return None
    state, config = info.state, info.config
    return StreamState(
        created_at=info.created,
        first_sequence=state.first_seq,
        last_sequence=state.last_seq,
        deleted_messages=state.num_deleted or 0,
        max_age=timedelta(seconds=config.max_age) if config.max_age else None,
        is_limited=_is_limited(config),
        passed=0 if consumer is None else _passed(consumer),
        leader=None if info.cluster is None else info.cluster.leader,
    )


async def advisories_are_recorded(connection: NatsConnection, topology: TopologySettings) -> bool:
    """Return whether the recorder has acknowledged every advisory about the event stream's consumer."""
    with connection.wrap_exceptions():
        for advisories in topology.advisories.consumers.values():
            consumer = await _find_consumer(connection, advisories.stream, advisories.durable)
            if consumer is None or consumer.num_pending or consumer.num_ack_pending:
                return False
    return True


async def read_messages(
    connection: NatsConnection, stream: str, sequences: Sequence[int]
) -> list[StoredMessage | None]:
    """Return the messages with these sequences, in the same order; None where the stream has no message."""
    messages: list[StoredMessage | None] = []
    for start in range(0, len(sequences), _CONCURRENT_READS):
        chunk = sequences[start : start + _CONCURRENT_READS]
        messages += await asyncio.gather(*(connection.get_message(stream, sequence) for sequence in chunk))
    return messages


async def _find_consumer(connection: NatsConnection, stream: str, durable: str) -> ConsumerInfo | None:
    try:
        info: ConsumerInfo = await connection.jetstream.consumer_info(stream, durable)
    except NotFoundError:
        return None
    return info


def _passed(consumer: ConsumerInfo) -> int:
    """Return the sequence up to which the consumer delivers nothing again.

    If the last deliveries ended without an acknowledgement, the floor stays behind until the next one.
    """
    is_idle = not consumer.num_pending and not consumer.num_ack_pending
    return _sequence(consumer.delivered if is_idle else consumer.ack_floor)


def _sequence(info: SequenceInfo | None) -> int:
    return 0 if info is None else info.stream_seq


def _is_limited(config: StreamConfig) -> bool:
    limits = (config.max_msgs, config.max_bytes, config.max_msgs_per_subject)
    return any(limit is not None and limit > 0 for limit in limits)
