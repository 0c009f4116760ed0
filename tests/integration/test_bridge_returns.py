"""N6, V1: what a bridge gives back comes again later each time, as the acknowledgements on the wire say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import nats
import pytest

from grantwire.errors import RetryableError
from tests.support.workers.bridge_stream import Stream, drain, event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nats.aio.msg import Msg

    from tests.integration.conftest import Rows

ACK_WAIT = 0.2

# The server is in trouble, whatever is written: nobody's message is at fault.
_DISK_FULL = """
CREATE FUNCTION disk_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER disk_full BEFORE INSERT ON notifications FOR EACH ROW EXECUTE FUNCTION disk_full();
"""


class Acknowledgements:
    """Hears what the bridge tells JetStream about each message: `+ACK`, `-NAK {"delay": ...}`, `+TERM` and so on."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._runner = asyncio.Runner()
        self._name = f".{environ['NOTIFICATION_NATS_STREAM']}.{environ['NOTIFICATION_NATS_DURABLE']}."
        self._heard: list[tuple[str, str]] = []
        self._client: Any = self._runner.run(self._listen(environ["NATS_URL"]))

    async def _listen(self, url: str) -> Any:
        client = await nats.connect(url)
        await client.subscribe("$JS.ACK.>", cb=self._note)
        await client.flush()
        return client

    async def _note(self, message: Msg) -> None:
        if self._name in message.subject:
            self._heard.append((message.subject.partition(self._name)[2], message.data.decode()))

    def returned(self) -> dict[tuple[int, int], float]:
        """The delay asked for, in seconds, by number in the stream and by delivery of each message given back."""

        async def all_there() -> None:
            await self._client.flush()
            await asyncio.sleep(0.01)

        self._runner.run(all_there())
        found = {}
        for numbers, body in self._heard:
            deliveries, sequence, *_ = map(int, numbers.split("."))
            answer, _, options = body.partition(" ")
            assert answer in {"-NAK", "+WPI"}, f"message {sequence} was answered {body!r}"
            if answer == "-NAK":
                found[sequence, deliveries] = (json.loads(options)["delay"] if options else 0) / 1e9
        return found

    def close(self) -> None:
        """Disconnect."""
        self._runner.run(self._client.close())
        self._runner.close()


@pytest.fixture
def acknowledgements(environ: dict[str, str]) -> Iterator[Acknowledgements]:
    """From before the first message on."""
    acknowledgements = Acknowledgements(environ)
    yield acknowledgements
    acknowledgements.close()


def test_a_message_that_is_given_back_again_and_again_waits_twice_as_long_each_time(
    environ: dict[str, str], acknowledgements: Acknowledgements, rows: Rows
) -> None:
    """N6, V1: the ack-wait after its first delivery, twice that after the second, and so on; never no time at all."""
    environ |= {"NOTIFICATION_NATS_ACK_WAIT": f"{ACK_WAIT * 1000:.0f}ms", "NOTIFICATION_NATS_MAX_DELIVER": "20"}
    rows.execute(_DISK_FULL)
    with Stream(environ) as stream:
        stream.publish(event(), event())
        deadline = time.monotonic() + 30
        while max((delivery for _, delivery in acknowledgements.returned()), default=0) < 3:
            assert time.monotonic() < deadline, acknowledgements.returned()
            with contextlib.suppress(RetryableError):  # a bridge that may not wait says why it ends
                drain(environ)
        assert stream.advisories() == []
    returned = acknowledgements.returned()
    assert {message for message, _ in returned} == {1, 2}
    # On a slow machine a delivery may run out before the bridge has answered it; those that it answered count.
    expected = {(message, delivery): ACK_WAIT * 2 ** (delivery - 1) for message, delivery in returned}
    assert returned == pytest.approx(expected)
    assert rows.execute("SELECT FROM notifications").fetchall() == []
