"""The library's client, with a shorter way for what comes and goes by the thousand.

A message that arrives is put into a queue by the library and taken out by a task; one that leaves waits for another
task to write it. That is fine for most, and costs a relay half of its time. Here a subscription may have its messages
handed over as they are read, and bytes may be written at once. Both lean on two private names of the library, whose
version is locked; tests/integration/test_broker.py fails if they change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nats.aio.client import Client

from grantwire.errors import RetryableError
from grantwire.observability import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.msg import Msg

    # Subject, reply, payload and, if there are any, headers, all as they were read.
    Handler = Callable[[bytes, bytes, bytes, bytes | None], None]


class QuickClient(Client):
    """A connection of the library's, never made again by itself."""

    def __init__(self) -> None:
        super().__init__()
        self._handlers: dict[int, Handler] = {}

    async def listen(self, subject: str, handler: Handler) -> None:
        """Subscribe; `handler` gets each message while it is being read, so it must not wait."""
        subscription = await self.subscribe(subject, cb=_never)
        self._handlers[subscription._id] = handler  # noqa: SLF001 - the library has no other name for it

    def write(self, data: bytes) -> None:
        """Send bytes of the protocol now, before anything that the library still holds."""
        if not self.is_connected or self._transport is None:
            raise RetryableError("not connected to NATS")
        self._transport.write(data)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        handler = self._handlers.get(sid)
        if handler is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        try:
            handler(subject, reply, data, headers)
        except Exception:  # noqa: BLE001 - the library would stop reading, and nobody would know
            log.exception("a message could not be handled", subject=subject.decode(errors="replace"))


async def _never(_message: Msg) -> None:
    """A subscription wants somebody to call."""
