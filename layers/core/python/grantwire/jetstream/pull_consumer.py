"""Pulls messages of one consumer.

nats-py's `fetch` takes one message at a time from a queue. Here a callback receives the messages of a request, which is
about three times as fast.

When `pull` returns, its request has ended on the server, so no messages arrive without a request. If the server
responds too late, the messages are kept for the next pull.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

from grantwire.errors import RetryableError
from grantwire.jetstream.message import Message

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from grantwire.jetstream.connection import NatsConnection

# A server that exceeds the end of a request by this much has stopped responding.
_GRACE_SECONDS = 2.0
_NO_MESSAGES_STATUSES = {"404", "408"}
_HEARTBEAT_STATUS = "100"


class PullConsumer:
    """Pulls messages of one consumer, with one request at a time."""

    def __init__(self, connection: NatsConnection, stream: str, consumer: str) -> None:
        self._connection = connection
        self._stream, self._consumer = stream, consumer
        self._api_subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._client: Client | None = None
        self._inbox = ""
        self._tokens = itertools.count()
        self._reply_subject = ""
        self._max_messages = 0
        self._response: asyncio.Future[None] | None = None
        self._received: list[Message] = []

    @property
    def is_open(self) -> bool:
        """Whether it is subscribed on the current connection."""
        return self._connection.is_connected and self._client is self._connection.client

    async def open(self) -> None:
        """Subscribe on the current connection.

        Messages of an earlier connection are dropped, because the server redelivers them.
        """
        client, inbox = self._connection.client, self._connection.client.new_inbox()
        with self._connection.wrap_exceptions():
            await client.subscribe(f"{inbox}.*", cb=self._on_message, pending_msgs_limit=0, pending_bytes_limit=0)
        self._client, self._inbox, self._received = client, inbox, []

    def close(self) -> None:
        """Mark it as closed; `open` subscribes again."""
        self._client = None

    async def pull(self, max_messages: int, wait_seconds: float) -> list[Message]:
        """Return up to `max_messages` available messages; if there are none, wait up to `wait_seconds` for the first.

        Raises RetryableError if the consumer does not exist or the server does not respond.
        """
        messages = await self._request(max_messages, 0, {"no_wait": True})
        if messages or wait_seconds <= 0:
            return messages
        # Wait for one message only: the request ends with it, and the next request gets the others.
        messages = await self._request(1, wait_seconds, {"expires": int(wait_seconds * 1e9)})
        if messages and max_messages > 1:
            messages += await self._request(max_messages - 1, 0, {"no_wait": True})
        return messages

    async def count_unacknowledged(self) -> int:
        """Return the consumer lag: the messages that were not delivered yet, or not acknowledged.

        Raises RetryableError if the consumer does not exist or the server does not respond.
        """
        with self._connection.wrap_exceptions():
            info = await self._connection.jetstream.consumer_info(self._stream, self._consumer)
        return (info.num_pending or 0) + (info.num_ack_pending or 0)

    def take_late_messages(self) -> list[Message]:
        """Return and remove the messages that arrived after their request had ended."""
        messages, self._received = self._received, []
        return messages

    async def _request(self, max_messages: int, wait_seconds: float, options: dict[str, Any]) -> list[Message]:
        if not self.is_open or self._client is None:
            raise RetryableError("not connected to NATS")
        self._reply_subject = f"{self._inbox}.{next(self._tokens)}"
        self._max_messages = max_messages
        self._response = asyncio.get_running_loop().create_future()
        try:
            with self._connection.wrap_exceptions():
                body = json.dumps({"batch": max_messages, **options}).encode()
                await self._client.publish(self._api_subject, body, self._reply_subject)
                await asyncio.wait_for(self._response, wait_seconds + _GRACE_SECONDS)
        except RetryableError:
            if not self._received:
                raise
        messages, self._received = self._received, []
        return messages

    async def _on_message(self, msg: Msg) -> None:
        if msg.reply and self._client is not None:
            self._received.append(Message(self._client, msg))
            if len(self._received) >= self._max_messages:
                self._end_request(None)
        elif msg.subject == self._reply_subject:
            headers = msg.headers or {}
            status = headers.get("Status", "")
            if status in _NO_MESSAGES_STATUSES:
                self._end_request(None)
            elif status != _HEARTBEAT_STATUS:
                description = headers.get("Description", "no description")
                self._end_request(
                    RetryableError(f"JetStream refused a pull request with status {status}: {description}")
                )

    def _end_request(self, error: RetryableError | None) -> None:
        if self._response is None or self._response.done():
            return
        if error is None:
            self._response.set_result(None)
        else:
            self._response.set_exception(error)
