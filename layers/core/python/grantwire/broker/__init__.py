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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nats.errors
from nats.js.errors import APIError

from grantwire.broker.access import BrokerSettings
from grantwire.broker.connecting import advice, connect
from grantwire.errors import AmbiguousError, RejectedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

__all__ = ["Ack", "Broker", "BrokerSettings", "translated"]

_MESSAGE_TOO_LARGE = 10054


@dataclass(frozen=True, slots=True)
class Ack:
    """JetStream has stored the message; `duplicate` means that it had it already."""

    stream: str
    sequence: int
    duplicate: bool


class Broker:
    """The execution environment's connection to NATS. All of it belongs to one event loop."""

    def __init__(self, settings: BrokerSettings, *, name: str = "grantwire") -> None:
        self._settings = settings
        self._name = name
        self._client: Client | None = None
        self._inbox = ""
        self._answers = _Answers(settings.publish_timeout.total_seconds())
        self._tokens = itertools.count()

    @property
    def client(self) -> Client:
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
            self._inbox = client.new_inbox()
            await client.subscribe(f"{self._inbox}.*", cb=answers.arrived)
        except (OSError, TimeoutError, nats.errors.Error) as error:
            raise RetryableError(f"NATS is unreachable: {error!r}{advice(error)}") from error
        self._client = client

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
        return await (await self.send(subject, payload, headers))

    async def send(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> asyncio.Future[Ack]:
        """Send a message without waiting: the future is its acknowledgement, or fails as `publish` does.

        Messages arrive in the order in which they were sent, but one that fails does not hold back the next.
        """
        client, token = self.client, str(next(self._tokens))
        answer = self._answers.expect(token)
        try:
            await client.publish(subject, payload, reply=f"{self._inbox}.{token}", headers=dict(headers))
        except nats.errors.MaxPayloadError as error:
            answer.cancel()
            raise RejectedError(f"the message is larger than the server takes: {len(payload)} bytes") from error
        except (nats.errors.Error, OSError) as error:
            answer.cancel()
            raise RetryableError(f"publishing failed: {error!r}") from error
        return answer

    async def term(self, message: Msg, reason: str) -> None:
        """Tell JetStream never to deliver this message again, and why; the client's own `term` takes no reason."""
        one_line = " ".join(reason.split())
        await self.client.publish(message.reply, b"+TERM " + one_line.encode()[:500])


class _Answers:
    """The acknowledgements that one connection waits for, each for the same time, so one timer serves them all."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._waiting: dict[str, tuple[float, asyncio.Future[Ack]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, token: str) -> asyncio.Future[Ack]:
        """The answer that will come with `token`."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Ack] = loop.create_future()
        self._waiting[token] = (loop.time() + self._patience, answer)
        if self._timer is None:
            self._timer = loop.call_later(self._patience, self._expire)
        return answer

    async def arrived(self, message: Msg) -> None:
        """Hand an acknowledgement to whoever waits for it."""
        _, answer = self._waiting.pop(message.subject.rpartition(".")[2], (0.0, None))
        if answer is None or answer.done():
            return
        try:
            answer.set_result(_parse_ack(message))
        except (RejectedError, RetryableError) as error:
            answer.set_exception(error)

    async def give_up(self) -> None:
        """The connection is gone: what was not answered will not be."""
        waiting, self._waiting = self._waiting, {}
        for _, answer in waiting.values():
            if not answer.done():
                answer.set_exception(AmbiguousError("the connection to NATS was closed"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        """The first to have been asked for is the first to be too late."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            token, (deadline, answer) = next(iter(self._waiting.items()))
            if deadline > loop.time():
                self._timer = loop.call_at(deadline, self._expire)
                return
            del self._waiting[token]
            if not answer.done():
                answer.set_exception(AmbiguousError("no acknowledgement in time"))
        self._timer = None


def _parse_ack(message: Msg) -> Ack:
    if (message.headers or {}).get("Status") == "503":
        raise RetryableError("no stream listens to this subject")
    try:
        answer: dict[str, Any] = json.loads(message.data)
    except ValueError:
        raise AmbiguousError("unreadable acknowledgement") from None
    if failure := answer.get("error"):
        text_of = f"JetStream refused the message: {failure.get('description')}"
        if failure.get("err_code") == _MESSAGE_TOO_LARGE:
            raise RejectedError(text_of)
        raise RetryableError(text_of)
    return Ack(answer["stream"], answer["seq"], bool(answer.get("duplicate", False)))


@contextlib.asynccontextmanager
async def translated() -> AsyncIterator[None]:
    """The client's errors as the rest of Grantwire knows them."""
    try:
        yield
    except APIError as error:
        raise RetryableError(f"JetStream: {error.description or error!r}") from error
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise RetryableError(f"NATS: {error!r}") from error
