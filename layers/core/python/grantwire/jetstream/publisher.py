"""Publishes to JetStream with many messages in flight.

nats-py's own `publish` of JetStream waits for one acknowledgement at a time, and its `publish_async` is slower than a
plain publish with a reply subject. So all messages of a connection share one inbox, whose subscription matches each
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
from grantwire.jetstream.errors import wrap_exceptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from grantwire.jetstream.connection import NatsConnection

_MESSAGE_TOO_LARGE = 10054
_NO_RESPONDERS = "503"


class PubAck(NamedTuple):
    """JetStream has stored the message; `duplicate` means that it had it already."""

    stream: str
    sequence: int
    duplicate: bool


Result = PubAck | GrantwireError


class Publisher:
    """Sends messages and matches each acknowledgement to its message. Belongs to its connection's event loop.

    A message ends in one of four ways: a PubAck; RejectedError, JetStream will never take it; AmbiguousError, it is
    not known whether it was stored, so send it again with the same Nats-Msg-Id; RetryableError, it was not stored.
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
        """Whether a message can be sent now."""
        return self._connection.is_connected

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PubAck:
        """Store one message and wait for the acknowledgement; raises what the message ended in."""
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        await self.send(subject, payload, headers, lambda ended: None if result.done() else result.set_result(ended))
        ended = await result
        if isinstance(ended, GrantwireError):
            raise ended
        return ended

    async def send(
        self, subject: str, payload: bytes, headers: Mapping[str, str], on_result: Callable[[Result], None]
    ) -> None:
        """Send one message; `on_result` is called once, when its result is known.

        Raises RejectedError or RetryableError, and never calls `on_result`, if it could not be sent at all. Messages
        arrive in the order in which they were sent, but one that fails does not hold back the next.
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
                return  # the connection closed meanwhile, and the result was reported
            if isinstance(error, nats.errors.MaxPayloadError):
                raise RejectedError(f"the message is larger than the server takes: {len(payload)} bytes") from error
            raise RetryableError(f"publishing failed: {error!r}") from error
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._timeout, self._expire)

    async def _subscribe(self, client: Client) -> None:
        inbox = client.new_inbox()
        with wrap_exceptions():
            # No limit: an acknowledgement that nats-py dropped would be a message whose result is unknown.
            await client.subscribe(f"{inbox}.*", cb=self._on_ack, pending_msgs_limit=0, pending_bytes_limit=0)
        self._client, self._inbox = client, inbox

    async def _on_ack(self, msg: Msg) -> None:
        pending = self._pending.pop(msg.subject.rpartition(".")[2], None)
        if pending is not None:
            pending[1](_result(msg))

    def _fail_pending(self) -> None:
        """The connection is gone, and with it every acknowledgement that had not come."""
        pending, self._pending = self._pending, {}
        for _, on_result in pending.values():
            on_result(AmbiguousError("the connection to NATS was closed"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        """End what is overdue. All messages have the same timeout, so the oldest is the first to be overdue."""
        while self._pending:
            token, (deadline, on_result) = next(iter(self._pending.items()))
            left = deadline - time.monotonic()
            if left > 0:
                self._timer = asyncio.get_running_loop().call_later(left, self._expire)
                return
            del self._pending[token]
            on_result(AmbiguousError("no acknowledgement in time"))
        self._timer = None


def _result(msg: Msg) -> Result:
    if msg.headers and msg.headers.get("Status") == _NO_RESPONDERS:
        return RetryableError("no stream listens to this subject")
    try:
        answer = json.loads(msg.data.decode())
        if "error" not in answer:
            return PubAck(answer["stream"], answer["seq"], bool(answer.get("duplicate", False)))
        failure = answer["error"]
        text = f"JetStream refused the message: {failure.get('description')}"
        too_large = failure.get("err_code") == _MESSAGE_TOO_LARGE
    except (ValueError, KeyError, TypeError, AttributeError):
        return AmbiguousError("unreadable acknowledgement")
    return RejectedError(text) if too_large else RetryableError(text)
