"""N6, V1: the redelivery delay of returned messages, read from the acknowledgements on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import nats
import pytest

from grantwire.errors import RetryableError
from tests.support.nats_users import as_admin
from tests.support.servers import newest_postgres
from tests.support.workers.bridge_stream import Stream, drain, event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nats.aio.msg import Msg

    from tests.integration.conftest import Rows

pytestmark = newest_postgres

ACK_WAIT_SECONDS = 0.2

# Every write fails, so no message is at fault.
_DISK_FULL = """
CREATE FUNCTION disk_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER disk_full BEFORE INSERT ON notifications FOR EACH ROW EXECUTE FUNCTION disk_full();
"""


class Acknowledgements:
    """Records the bridge's acknowledgements of each message: `+ACK`, `-NAK {"delay": ...}`, `+TERM` and so on."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._runner = asyncio.Runner()
        self._name = f".{environ['NOTIFICATION_NATS_STREAM']}.{environ['NOTIFICATION_NATS_DURABLE']}."
        self._received: list[tuple[str, str]] = []
        self._client: Any = self._runner.run(self._listen(as_admin(environ)["NATS_URL"]))

    async def _listen(self, url: str) -> Any:
        client = await nats.connect(url)
        await client.subscribe("$JS.ACK.>", cb=self._record)
        await client.flush()
        return client

    async def _record(self, message: Msg) -> None:
        if self._name in message.subject:
            self._received.append((message.subject.partition(self._name)[2], message.data.decode()))

    def returned(self) -> dict[tuple[int, int], float]:
        """Return the requested delay in seconds of each NAK, by stream sequence and delivery count."""

        async def flush() -> None:
            await self._client.flush()
            await asyncio.sleep(0.01)

        self._runner.run(flush())
        delays = {}
        for numbers, body in self._received:
            deliveries, sequence, *_ = map(int, numbers.split("."))
            kind, _, options = body.partition(" ")
            assert kind in {"-NAK", "+WPI"}, f"message {sequence} was acknowledged with {body!r}"
            if kind == "-NAK":
                delays[sequence, deliveries] = (json.loads(options)["delay"] if options else 0) / 1e9
        return delays

    def close(self) -> None:
        """Disconnect."""
        self._runner.run(self._client.close())
        self._runner.close()


@pytest.fixture
def acknowledgements(environ: dict[str, str]) -> Iterator[Acknowledgements]:
    """Record acknowledgements from before the first message on."""
    acknowledgements = Acknowledgements(environ)
    yield acknowledgements
    acknowledgements.close()


def test_redelivery_delay_doubles_with_each_delivery(
    environ: dict[str, str], acknowledgements: Acknowledgements, rows: Rows
) -> None:
    """N6, V1: the delay is the ack wait after the first delivery, and doubles with each; it is never zero."""
    environ |= {"NOTIFICATION_NATS_ACK_WAIT": f"{ACK_WAIT_SECONDS * 1000:.0f}ms", "NOTIFICATION_NATS_MAX_DELIVER": "20"}
    rows.execute(_DISK_FULL)
    with Stream(environ) as stream:
        stream.publish(event(), event())
        deadline = time.monotonic() + 60
        while max((delivery for _, delivery in acknowledgements.returned()), default=0) < 3:
            assert time.monotonic() < deadline, acknowledgements.returned()
            with contextlib.suppress(RetryableError):  # a bridge with until_idle raises instead of waiting
                drain(environ)
        assert stream.advisories() == []
    returned = acknowledgements.returned()
    assert {message for message, _ in returned} == {1, 2}
    # On a slow machine the ack wait may end before the bridge returns a message; only returned ones are compared.
    expected = {(message, delivery): ACK_WAIT_SECONDS * 2 ** (delivery - 1) for message, delivery in returned}
    assert returned == pytest.approx(expected)
    assert rows.execute("SELECT FROM notifications").fetchall() == []
