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

_MAX_REASON_BYTES = 500


class Message:
    """A message of a pull consumer, with the four ways to acknowledge it: ack, nak, in progress and term.

    An acknowledgement is sent without waiting for the server; if it is lost, the message is redelivered. Each raises
    RetryableError if the connection was lost.
    """

    __slots__ = ("_client", "msg")

    def __init__(self, client: Client, msg: Msg) -> None:
        self._client = client
        self.msg = msg

    @property
    def subject(self) -> str:
        """The subject that the message was published to."""
        return self.msg.subject

    @property
    def data(self) -> bytes:
        """The payload."""
        return self.msg.data

    @property
    def headers(self) -> Mapping[str, str]:
        """Header values by name, as nats-py returns them; empty if there are none."""
        return self.msg.headers or {}

    @property
    def stream_sequence(self) -> int:
        """The sequence of the message in the stream."""
        return self.msg.metadata.sequence.stream

    @property
    def delivery_count(self) -> int:
        """The number of deliveries of the message, including this one."""
        return self.msg.metadata.num_delivered

    async def ack(self) -> None:
        """Acknowledge that the message was processed."""
        with wrap_exceptions():
            await self.msg.ack()

    async def nak(self, delay: float = 0.0) -> None:
        """Request a redelivery after `delay` seconds; it counts towards the consumer's max-deliver."""
        with wrap_exceptions():
            await self.msg.nak(delay)

    async def in_progress(self) -> None:
        """Restart the consumer's ack-wait for the message."""
        with wrap_exceptions():
            await self.msg.in_progress()

    async def term(self, reason: str) -> None:
        """Terminate the message, so that it is never redelivered.

        The reason is added to the advisory, which nats-py's own `term` does not support.
        """
        one_line = " ".join(reason.split()).encode()[:_MAX_REASON_BYTES]
        with wrap_exceptions():
            await self._client.publish(self.msg.reply, b"+TERM " + one_line)


async def acknowledge(messages: Iterable[Message]) -> None:
    """Acknowledge several messages; raise RetryableError if the connection was lost."""
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
    def from_nats(cls, msg: RawStreamMsg) -> StoredMessage:
        """Convert a message of nats-py."""
        return cls(msg.subject or "", text_headers(msg.headers), msg.data or b"", msg.time)


def text_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Convert headers to text: nats-py returns a value that is not ASCII as an object of the email package."""
    return {str(name): str(value) for name, value in (headers or {}).items()}
