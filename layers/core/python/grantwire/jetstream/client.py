"""The library's client, with a shorter way for what comes and goes by the thousand.

A message that arrives is put into a queue by the library and taken out by a task; one that leaves waits for another
task to write it. That is fine for most, and costs a relay half of its time. Here a subscription may have its messages
handed over as they are read, and bytes may be written at once. That leans on private names of the library (`_ps`,
`_process_msg`, `_transport`, a subscription's `_id`), whose version is locked; tests/unit/test_broker_client.py and
tests/integration/test_broker.py fail if they change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nats.aio.client import Client
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

from grantwire.errors import RetryableError
from grantwire.observability import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.msg import Msg

    # Subject, reply, payload and, if there are any, headers, all as they were read.
    Handler = Callable[[bytes, bytes, bytes, bytes | None], None]


# How many words the line of a message has that wants an answer; a message without a reply has one less.
_MESSAGES = {b"MSG": 5, b"HMSG": 6}


class _QuickParser(Parser):
    """Reads whole messages that have a handler without trying all words of the protocol; the library reads the rest."""

    async def parse(self, data: bytes = b"") -> None:
        """Hand over what can be handed over at once, as far as that goes."""
        at = 0
        if not self.buf and self.state == AWAITING_CONTROL_LINE:
            at = self._hand_over(data)
        if at < len(data):
            await super().parse(data[at:])

    def _hand_over(self, data: bytes) -> int:
        """Where the first byte is that was not read."""
        client, at = self.nc, 0
        while (end := data.find(b"\r\n", at)) > 0:
            words = data[at:end].split()
            wanted = _MESSAGES.get(words[0]) if words else None
            if wanted is None or len(words) < wanted - 1 or not (words[2].isdigit() and words[-1].isdigit()):
                break
            kind, handler = words[0], client.handlers.get(int(words[2]))
            if handler is None:
                break
            begin, behind = end + 2, end + 2 + int(words[-1])
            if behind + 2 > len(data):
                break
            body = begin + int(words[-2]) if kind == b"HMSG" else begin
            reply = words[3] if len(words) == wanted else b""
            client.handle(handler, words[1], reply, data[body:behind], data[begin:body] or None)
            at = behind + 2
        return at


class QuickClient(Client):
    """A connection of the library's, never made again by itself."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = _QuickParser(self)
        self.handlers: dict[int, Handler] = {}

    async def listen(self, subject: str, handler: Handler) -> None:
        """Subscribe; `handler` gets each message while it is being read, so it must not wait."""
        subscription = await self.subscribe(subject, cb=_never)
        self.handlers[subscription._id] = handler  # noqa: SLF001 - the library has no other name for it

    def write(self, data: bytes) -> None:
        """Send bytes of the protocol now, before anything that the library still holds."""
        if not self.is_connected or self._transport is None:
            raise RetryableError("not connected to NATS")
        self._transport.write(data)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        handler = self.handlers.get(sid)
        if handler is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            self.handle(handler, subject, reply, data, headers)

    @staticmethod
    def handle(handler: Handler, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        """Hand one message over; what fails there is logged."""
        try:
            handler(subject, reply, data, headers)
        except Exception:  # noqa: BLE001 - the library would stop reading, and nobody would know
            log.exception("a message could not be handled", subject=subject.decode(errors="replace"))


async def _never(_message: Msg) -> None:
    """A subscription wants somebody to call."""
