"""NATS JetStream: the one asynchronous edge, and the one place that knows the client's errors.

A connection belongs to one event loop, and a frozen sandbox loses its socket: it never reconnects by itself, it is
checked when an invocation begins and made anew when it is gone. So nothing is ever buffered for later, and no late
publish can overtake one that came after it.

Where the settings ask for TLS, the server must prove its name with a certificate before it is told who we are.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import nats.errors
from nats.js.errors import APIError

from grantwire.errors import AmbiguousError, GrantwireError, RejectedError, RetryableError
from grantwire.jetstream.access import BrokerSettings
from grantwire.jetstream.connecting import advice, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

    from grantwire.jetstream.client import QuickClient

    # What became of a message: the error, or None and JetStream's acknowledgement as it came.
    Answered = Callable[[GrantwireError | None, bytes], None]

__all__ = ["Ack", "Broker", "BrokerSettings", "translated"]

_MESSAGE_TOO_LARGE = 10054


class Ack(NamedTuple):
    """JetStream has stored the message; `duplicate` means that it had it already."""

    stream: str
    sequence: int
    duplicate: bool


class Broker:
    """The execution environment's connection to NATS. All of it belongs to one event loop."""

    def __init__(self, settings: BrokerSettings, *, name: str = "grantwire") -> None:
        self._settings = settings
        self._name = name
        self._client: QuickClient | None = None
        self._inbox = b""
        self._answers = _Answers(settings.publish_timeout.total_seconds())
        self._tokens = itertools.count()
        self._posted: list[bytes] = []

    @property
    def client(self) -> QuickClient:
        """The live connection; `connect` first."""
        if self._client is None or not self._client.is_connected:
            raise RetryableError("not connected to NATS")
        return self._client

    @property
    def jetstream(self) -> JetStreamContext:
        """JetStream on the live connection."""
        return self.client.jetstream(timeout=self._settings.publish_timeout.total_seconds())

    @property
    def is_connected(self) -> bool:
        """Whether the connection was alive when last heard of."""
        return self._client is not None and self._client.is_connected

    async def connect(self) -> None:
        """Make sure of a live connection: ask the one there is, or make a new one; else RetryableError."""
        if self._client is not None:
            with contextlib.suppress(Exception):
                if self._client.is_connected:
                    await self._client.flush(timeout=1)
                    return
            await self.close()
        self._answers = answers = _Answers(self._settings.publish_timeout.total_seconds())
        try:
            client = await connect(self._settings, name=self._name, closed=answers.give_up)
            inbox = client.new_inbox()
            await client.listen(f"{inbox}.*", answers.arrived)
        except (OSError, TimeoutError, nats.errors.Error) as error:
            raise RetryableError(f"NATS is unreachable: {error!r}{advice(error)}") from error
        self._client, self._inbox = client, inbox.encode()

    async def close(self) -> None:
        """Drop the connection; whoever waits for an acknowledgement is told that it is not known."""
        client, self._client = self._client, None
        await self._answers.give_up()
        if client is not None:
            with contextlib.suppress(Exception):
                await client.close()

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> Ack:
        """Store a message in the stream of `subject` and wait for the acknowledgement.

        Raises RejectedError if JetStream will never take this message, AmbiguousError if it is not known whether it
        has it (send it again with the same Nats-Msg-Id), RetryableError if it has not got it.
        """
        answer: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()

        def answered(error: GrantwireError | None, data: bytes) -> None:
            if answer.done():
                return
            try:
                answer.set_result(_parse_ack(data)) if error is None else answer.set_exception(error)
            except GrantwireError as unreadable:
                answer.set_exception(unreadable)

        client, token = self.client, b"%d" % next(self._tokens)
        self._answers.expect(token, answered)
        try:
            reply = f"{self._inbox.decode()}.{token.decode()}"
            await client.publish(subject, payload, reply=reply, headers=dict(headers))
        except nats.errors.MaxPayloadError as error:
            answer.cancel()
            raise _too_large(payload) from error
        except (nats.errors.Error, OSError) as error:
            answer.cancel()
            raise RetryableError(f"publishing failed: {error!r}") from error
        return await answer

    def post(self, subject: bytes, payload: bytes, headers: bytes, answered: Answered) -> None:
        """Have a message ready for `push`, which sends it; `answered` is called once, with what `publish` would raise.

        `headers` are in the protocol's own words. Messages arrive in the order in which they were posted, but one that
        fails does not hold back the next.
        """
        size = len(headers)
        if size + len(payload) > self.client.max_payload:
            raise _too_large(payload)
        token = b"%d" % next(self._tokens)
        self._answers.expect(token, answered)
        order = b"HPUB %b %b.%b %d %d\r\n" % (subject, self._inbox, token, size, size + len(payload))
        self._posted += (order, headers, payload, b"\r\n")

    def push(self) -> None:
        """Send what was posted; RetryableError if there is no connection to send it by."""
        posted, self._posted = self._posted, []
        if posted:
            self.client.write(b"".join(posted))

    async def term(self, message: Msg, reason: str) -> None:
        """Tell JetStream never to deliver this message again, and why; the client's own `term` takes no reason."""
        one_line = " ".join(reason.split())
        await self.client.publish(message.reply, b"+TERM " + one_line.encode()[:500])


class _Answers:
    """The acknowledgements that one connection waits for, each for the same time, so one timer serves them all."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._waiting: dict[bytes, tuple[float, Answered]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, token: bytes, answered: Answered) -> None:
        """Call `answered` with the answer that will come with `token`."""
        self._waiting[token] = (time.monotonic() + self._patience, answered)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._patience, self._expire)

    def arrived(self, subject: bytes, _reply: bytes, data: bytes, headers: bytes | None) -> None:
        """Hand an acknowledgement to whoever waits for it."""
        waiting = self._waiting.pop(subject.rpartition(b".")[2], None)
        if waiting is not None:
            waiting[1](_refusal(data, headers), data)

    async def give_up(self) -> None:
        """The connection is gone: what was not answered will not be."""
        waiting, self._waiting = self._waiting, {}
        for _, answered in waiting.values():
            answered(AmbiguousError("the connection to NATS was closed"), b"")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        """The first to have been asked for is the first to be too late."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            token, (deadline, answered) = next(iter(self._waiting.items()))
            left = deadline - time.monotonic()
            if left > 0:
                self._timer = loop.call_later(left, self._expire)
                return
            del self._waiting[token]
            answered(AmbiguousError("no acknowledgement in time"), b"")
        self._timer = None


def _too_large(payload: bytes) -> RejectedError:
    return RejectedError(f"the message is larger than the server takes: {len(payload)} bytes")


def _refusal(data: bytes, headers: bytes | None) -> GrantwireError | None:
    """Why a message was not stored; None if it was, which is seen without parsing it."""
    if headers is not None and b" 503" in headers:
        return RetryableError("no stream listens to this subject")
    if data.startswith(b'{"stream":') and b'"error":' not in data:
        return None
    try:
        failure = json.loads(data)["error"]
        text_of = f"JetStream refused the message: {failure.get('description')}"
        too_large = failure.get("err_code") == _MESSAGE_TOO_LARGE
    except (ValueError, KeyError, TypeError, AttributeError):
        return AmbiguousError("unreadable acknowledgement")
    return RejectedError(text_of) if too_large else RetryableError(text_of)


def _parse_ack(data: bytes) -> Ack:
    try:
        answer: dict[str, Any] = json.loads(data)
        return Ack(answer["stream"], answer["seq"], bool(answer.get("duplicate", False)))
    except (ValueError, KeyError):
        raise AmbiguousError("unreadable acknowledgement") from None


@contextlib.asynccontextmanager
async def translated() -> AsyncIterator[None]:
    """The client's errors as the rest of Grantwire knows them."""
    try:
        yield
    except APIError as error:
        raise RetryableError(f"JetStream: {error.description or error!r}") from error
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise RetryableError(f"NATS: {error!r}") from error
