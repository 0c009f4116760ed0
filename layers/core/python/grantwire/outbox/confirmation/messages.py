"""Finds the messages of published events in the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from grantwire.jetstream.stream_state import read_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.stream_state import StreamState


class Located(Protocol):
    """Something that was published as an event, and where its message should be."""

    @property
    def event_id(self) -> str:
        """The id of the event."""

    @property
    def stream_sequence(self) -> int | None:
        """The sequence of its message, if it is known."""


Item = TypeVar("Item", bound=Located)


async def find_lost(
    nats: NatsConnection, stream: str, items: Sequence[Item], state: StreamState, *, aged: bool = True
) -> list[Item]:
    """Return those whose message is not in the stream; without `aged`, not those before its first message."""
    inside = []
    lost = set()
    for position, item in enumerate(items):
        sequence = item.stream_sequence
        if sequence is not None and state.first_sequence <= sequence <= state.last_sequence:
            inside.append((position, sequence))
        elif aged or sequence is None or sequence > state.last_sequence:
            lost.add(position)
    messages = await read_messages(nats, stream, [sequence for _, sequence in inside])
    for (position, _), message in zip(inside, messages, strict=True):
        if message is None or message.headers.get("event_id") != items[position].event_id:
            lost.add(position)
    return [item for position, item in enumerate(items) if position in lost]
