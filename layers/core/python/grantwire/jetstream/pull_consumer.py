"""Pulls messages of one durable consumer.

Every request has ended on the server when `pull` returns: what was delivered is in the caller's hands, and nothing
comes uncalled. A message that arrives after all, because the server answered later than it promised, is kept for the
next pull.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

from nats.aio.msg import Msg

from grantwire.errors import RetryableError
from grantwire.jetstream import translated

if TYPE_CHECKING:
    from grantwire.jetstream.client import QuickClient
    from grantwire.jetstream.topology import ConsumerSettings

# Past the end of a request by this much, the server is no longer answering.
_GRACE_SECONDS = 2.0

_NO_MORE = {"404", "408"}
_HEARTBEAT = "100"
_STATUS = slice(len("NATS/1.0 "), len("NATS/1.0 404"))


class Puller:
    """One connection's requests to one consumer, one at a time."""

    def __init__(self, client: QuickClient, settings: ConsumerSettings) -> None:
        self.client = client
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{settings.stream}.{settings.durable}"
        self._inbox = client.new_inbox()
        self._tokens = itertools.count()
        self._request = ""
        self._wanted = 0
        self._ended: asyncio.Future[None] | None = None
        self._arrived: list[Msg] = []

    async def open(self) -> None:
        """Listen for answers."""
        async with translated():
            await self.client.listen(f"{self._inbox}.*", self._on_answer)

    async def pull(self, most: int, wait: float) -> list[Msg]:
        """Up to `most` of the messages that are there; if there are none, those that come within `wait` seconds.

        Raises RetryableError if the consumer is gone or the server does not answer.
        """
        messages = await self._ask(most, 0, {"no_wait": True})
        if messages or wait <= 0:
            return messages
        # One is the doorbell; the rest is there by the time that it rings.
        messages = await self._ask(1, wait, {"expires": int(wait * 1e9)})
        if messages and most > 1:
            messages += await self._ask(most - 1, 0, {"no_wait": True})
        return messages

    def leftovers(self) -> list[Msg]:
        """Messages that came after their request had ended."""
        messages, self._arrived = self._arrived, []
        return messages

    async def _ask(self, most: int, wait: float, how: dict[str, Any]) -> list[Msg]:
        self._request = f"{self._inbox}.{next(self._tokens)}"
        self._wanted = most
        self._ended = asyncio.get_running_loop().create_future()
        try:
            async with translated():
                await self.client.publish(self._next, json.dumps({"batch": most, **how}).encode(), reply=self._request)
                await asyncio.wait_for(self._ended, wait + _GRACE_SECONDS)
        except RetryableError:
            if not self._arrived:
                raise
        return self.leftovers()

    def _on_answer(self, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        lines = (headers or b"").decode(errors="replace").split("\r\n")
        if reply:
            self._arrived.append(
                Msg(self.client, subject=subject.decode(), reply=reply.decode(), data=data, headers=_headers(lines))
            )
            if len(self._arrived) >= self._wanted:
                self._end(None)
        elif subject.decode() == self._request:
            status = lines[0][_STATUS]
            if status != _HEARTBEAT:
                self._end(None if status in _NO_MORE else RetryableError(f"JetStream answers a pull with {status}"))

    def _end(self, error: RetryableError | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)


def _headers(lines: list[str]) -> dict[str, str]:
    """By name, behind the line with the protocol's version; what is no header is left out."""
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.strip()
    return headers
