"""Messages as JetStream delivers and stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from grantwire.jetstream.errors import wrap_exceptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js.api import RawStreamMsg

_LONGEST_REASON_BYTES = 500


class Message:
    """A message of a pull consumer, and the four responses to it.

    Responses are sent without waiting for the server: one that is lost leads to another delivery. Each raises
    RetryableError if the connection is gone.
    """

    __slots__ = ("_client", "msg")

    def __init__(self, client: Client, msg: Msg) -> None:
        self._client = client
        self.msg = msg

    @property
    def subject(self) -> str:
        """The subject that it was published to."""
        return self.msg.subject

    @property
    def data(self) -> bytes:
        """The payload."""
        return self.msg.data

    @property
    def headers(self) -> Mapping[str, str]:
        """Header values by name, as nats-py has them; empty if there are none."""
        return self.msg.headers or {}

    @property
    def stream_sequence(self) -> int:
        """Its position in the stream."""
        return self.msg.metadata.sequence.stream

    @property
    def consumer_sequence(self) -> int:
        """Its position among the consumer's deliveries."""
        return self.msg.metadata.sequence.consumer

    @property
    def deliveries(self) -> int:
        """How many times it was delivered, this time included."""
        return self.msg.metadata.num_delivered

    async def ack(self) -> None:
        """Acknowledge: it is done."""
        with wrap_exceptions():
            await self.msg.ack()

    async def nak(self, delay: float = 0.0) -> None:
        """Return it, to be delivered again after `delay` seconds; counts towards the consumer's max-deliver."""
        with wrap_exceptions():
            await self.msg.nak(delay)

    async def in_progress(self) -> None:
        """Restart the consumer's ack-wait for it."""
        with wrap_exceptions():
            await self.msg.in_progress()

    async def term(self, reason: str) -> None:
        """Terminate: never deliver it again. The reason goes into the advisory, which nats-py's `term` cannot do."""
        one_line = " ".join(reason.split()).encode()[:_LONGEST_REASON_BYTES]
        with wrap_exceptions():
            await self._client.publish(self.msg.reply, b"+TERM " + one_line)


async def acknowledge(messages: Iterable[Message]) -> None:
    """Acknowledge many; RetryableError if the connection is gone."""
    with wrap_exceptions():
        for message in messages:
            await message.msg.ack()


class StoredMessage(NamedTuple):
    """A message read from a stream by its sequence."""

    subject: str
    headers: Mapping[str, str]
    data: bytes
    time: datetime | None

    @classmethod
    def of(cls, found: RawStreamMsg) -> StoredMessage:
        """Take it over from nats-py."""
        return cls(found.subject or "", text_headers(found.headers), found.data or b"", found.time)


def text_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Headers as text: nats-py hands out one that is not ASCII as an object of the email package."""
    return {str(name): str(value) for name, value in (headers or {}).items()}
