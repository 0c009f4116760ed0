"""Publishes to JetStream with many messages in flight.

JetStream's `publish` in nats-py waits for one acknowledgement at a time, and its `publish_async` is slower than a plain
publish with a reply subject. So all messages of a connection share one reply inbox. Its subscription matches each
acknowledgement to its message by the last token of the subject.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from typing import TYPE_CHECKING, NamedTuple

import nats.errors

from grantwire.errors import AmbiguousError, GrantwireError, RejectedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from grantwire.jetstream.connection import NatsConnection

_MESSAGE_TOO_LARGE_CODE = 10054
_NO_RESPONDERS_STATUS = "503"


class PubAck(NamedTuple):
    """JetStream's acknowledgement of a stored message; `duplicate` means that it was stored before."""

    stream: str
    sequence: int
    duplicate: bool


Result = PubAck | GrantwireError


class Publisher:
    """Sends messages and matches each acknowledgement to its message. It belongs to one event loop.

    The result of a message is one of:

    - PubAck: the message is stored.
    - RejectedError: JetStream will never accept the message.
    - AmbiguousError: the message may be stored; send it again with the same Nats-Msg-Id.
    - RetryableError: the message is not stored, or the server denied a publish; a retry may succeed.
    """

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._timeout = connection.settings.publish_timeout.total_seconds()
        self._client: Client | None = None
        self._inbox = ""
        self._tokens = itertools.count()
        self._pending: dict[str, tuple[float, Callable[[Result], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        connection.on_closed(self._fail_pending)

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open, so that messages can be sent."""
        return self._connection.is_connected

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PubAck:
        """Send one message and wait for the acknowledgement; raise the result if it is an error."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        await self.send(subject, payload, headers, lambda result: None if future.done() else future.set_result(result))
        result = await future
        if isinstance(result, GrantwireError):
            raise result
        return result

    async def send(
        self, subject: str, payload: bytes, headers: Mapping[str, str], on_result: Callable[[Result], None]
    ) -> None:
        """Send one message; `on_result` is called once, when the result is known.

        Raises RejectedError or RetryableError, and never calls `on_result`, if the message could not be sent. Messages
        arrive in the order in which they were sent, but a failed message does not hold back the next one.
        """
        client = self._connection.client
        if client is not self._client:
            await self._subscribe(client)
        token = str(next(self._tokens))
        self._pending[token] = (time.monotonic() + self._timeout, on_result)
        try:
            await client.publish(subject, payload, reply=f"{self._inbox}.{token}", headers=dict(headers))
        except (nats.errors.Error, OSError) as error:
            if self._pending.pop(token, None) is None:
                return  # the connection was closed meanwhile, and `on_result` was called
            if isinstance(error, nats.errors.MaxPayloadError):
                raise RejectedError(f"the message exceeds max_payload of the server: {len(payload)} bytes") from error
            raise RetryableError(f"publishing failed: {error!r}") from error
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._timeout, self._expire_pending)

    async def _subscribe(self, client: Client) -> None:
        inbox = client.new_inbox()
        with self._connection.wrap_exceptions():
            # No limit: nats-py would drop acknowledgements beyond it, and their messages would end as ambiguous.
            await client.subscribe(f"{inbox}.*", cb=self._on_ack, pending_msgs_limit=0, pending_bytes_limit=0)
        self._client, self._inbox = client, inbox

    async def _on_ack(self, msg: Msg) -> None:
        pending = self._pending.pop(msg.subject.rpartition(".")[2], None)
        if pending is not None:
            pending[1](_parse_ack(msg))

    def _fail_pending(self) -> None:
        """Fail all messages in flight: with the connection, their acknowledgements are lost."""
        pending, self._pending = self._pending, {}
        for _, on_result in pending.values():
            on_result(AmbiguousError("the connection to NATS was closed"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire_pending(self) -> None:
        """Fail messages whose timeout has passed; the oldest expires first, because all have the same timeout."""
        while self._pending:
            token, (deadline, on_result) = next(iter(self._pending.items()))
            remaining = deadline - time.monotonic()
            if remaining > 0:
                self._timer = asyncio.get_running_loop().call_later(remaining, self._expire_pending)
                return
            del self._pending[token]
            denied = self._connection.permission_denied_since(deadline - self._timeout)
            on_result(RetryableError(denied) if denied else AmbiguousError("no acknowledgement in time"))
        self._timer = None


def _parse_ack(msg: Msg) -> Result:
    if msg.headers and msg.headers.get("Status") == _NO_RESPONDERS_STATUS:
        return RetryableError("no stream listens to this subject")
    try:
        ack = json.loads(msg.data.decode())
        if "error" not in ack:
            return PubAck(ack["stream"], ack["seq"], bool(ack.get("duplicate", False)))
        error = ack["error"]
        reason = f"JetStream refused the message: {error.get('description')}"
        is_too_large = error.get("err_code") == _MESSAGE_TOO_LARGE_CODE
    except (ValueError, KeyError, TypeError, AttributeError):
        return AmbiguousError("unreadable acknowledgement")
    return RejectedError(reason) if is_too_large else RetryableError(reason)
