"""Changes that flow from the outbox through a stream that loses them, and what arrived of them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from grantwire.events.encoding import encode_event
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.pull_consumer import PullConsumer
from grantwire.jetstream.settings import NatsSettings
from grantwire.settings import load
from grantwire.wiring.workers.record_advisories import RecorderRuntime
from tests.support.audit import audit_payloads
from tests.support.commands import Operations
from tests.support.nats_users import as_admin, configure
from tests.support.waiting import until
from tests.support.workers import bridge_stream, relay_support

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    import psycopg
    from nats.js import JetStreamContext
    from nats.js.api import StreamConfig

    from grantwire.jetstream.message import Message
    from infra.local.servers.nats import NatsServer

_MINUTE = timedelta(minutes=1)


class LossyStream:
    """An outbox, a stream and an inbox, and the accidents that can happen to the stream.

    Each run of the relay is a minute later than the one before, so that no test waits for the grace.
    """

    def __init__(self, environ: Mapping[str, str], rows: psycopg.Connection[dict[str, Any]]) -> None:
        self.environ = dict(environ)
        self.rows = rows
        self.now = datetime.now(UTC)
        self.versions: Counter[str] = Counter()
        self._stream = environ["ENTITLEMENT_NATS_STREAM"]
        self._durable = environ["NOTIFICATION_NATS_DURABLE"]

    def change(self, users: int = 1, versions: int = 1, prefix: str = "u") -> list[str]:
        """Commit changes of several users, each with its audit row, and return the ids of their events."""
        with self.rows.transaction():
            return [self._change_user(f"{prefix}{number}") for _ in range(versions) for number in range(users)]

    def _change_user(self, user: str) -> str:
        self.versions[user] += 1
        version = self.versions[user]
        occurred_at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        fields = {"user_id": user, "occurred_at": occurred_at}
        event_id = relay_support.enqueue(self.rows, f"{user}/item1", version, **fields)
        audit_payloads(self.rows, [relay_support.payload(event_id, version, **fields)])
        return str(event_id)

    def relay(self, minutes: float = 1, **environ: str) -> dict[str, int]:
        """Run a relay until it is idle: first it checks what was published before, then it publishes."""
        self.now += minutes * _MINUTE
        return relay_support.drain(self.environ | environ, self.now)

    def bridge(self) -> dict[str, int]:
        """Run a bridge until it is idle."""
        return bridge_stream.drain(self.environ)

    def publish(self, users: int = 1, versions: int = 1, prefix: str = "u") -> list[str]:
        """Commit changes and publish them."""
        ids = self.change(users, versions, prefix)
        self.relay()
        return ids

    def arrived(self) -> set[str]:
        """Return the ids of the events in the inbox."""
        return {str(row["event_id"]) for row in self.rows.execute("SELECT event_id FROM processed_events")}

    def sequences(self) -> dict[str, int]:
        """Return the sequence of each published event."""
        rows = self.rows.execute("SELECT event_id, stream_sequence FROM outbox_events WHERE status = 'PUBLISHED'")
        return {str(row["event_id"]): row["stream_sequence"] for row in rows}

    def published(self) -> list[relay_support.Published]:
        """Return the messages of the stream."""
        return relay_support.read_stream(self.environ)

    def losses(self) -> list[dict[str, Any]]:
        """Return the recorded losses of the stream."""
        return self.rows.execute("SELECT * FROM stream_losses ORDER BY loss_id").fetchall()

    def unconfirmed(self) -> dict[str, str]:
        """Return the state of each listed event."""
        return {str(row["event_id"]): row["state"] for row in self.rows.execute("SELECT * FROM outbox_unconfirmed")}

    def status(self) -> dict[str, Any]:
        """Return what the confirmation knows."""
        query = "SELECT outbox_confirmation_status(1000, %s) AS status"
        (row,) = self.rows.execute(query, (self.now,)).fetchall()
        status: dict[str, Any] = row["status"]
        return status

    def administer(self, action: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
        """Run an action of an administrator of NATS."""
        return self._connect(lambda nats: action(nats.jetstream))

    def _connect(self, action: Callable[[NatsConnection], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            nats = NatsConnection(load(NatsSettings, as_admin(self.environ)))
            await nats.connect()
            try:
                return await action(nats)
            finally:
                await nats.close()

        return asyncio.run(run())

    def purge(self) -> None:
        """Remove all messages of the stream."""
        self.administer(lambda jetstream: jetstream.purge_stream(self._stream))

    def delete_message(self, sequence: int) -> None:
        """Remove one message of the stream."""
        self.administer(lambda jetstream: jetstream.delete_msg(self._stream, sequence))

    def delete_stream(self) -> None:
        """Delete the stream."""
        self.administer(lambda jetstream: jetstream.delete_stream(self._stream))

    def recreate_stream(self) -> None:
        """Delete the stream, and create it again by a deployment."""
        self.delete_stream()
        configure(self.environ)

    def delete_consumer(self) -> None:
        """Delete the bridge's consumer."""
        self.administer(lambda jetstream: jetstream.delete_consumer(self._stream, self._durable))

    def age_out(self) -> None:
        """Let the messages leave the stream by their age, and restore its settings."""
        config = self.shorten_age()
        until("the stream is empty", lambda: self._count_messages(self._stream) == 0)
        self.administer(lambda jetstream: jetstream.update_stream(config))

    def shorten_age(self) -> StreamConfig:
        """Let messages leave the stream after 100 ms; return its configuration before."""

        async def run(jetstream: JetStreamContext) -> StreamConfig:
            config = (await jetstream.stream_info(self._stream)).config
            await jetstream.update_stream(config.evolve(max_age=0.1, duplicate_window=0.1))
            return config

        config: StreamConfig = self.administer(run)
        return config

    def _count_messages(self, stream: str) -> int:
        messages: int = self.administer(lambda jetstream: jetstream.stream_info(stream)).state.messages
        return messages

    def acknowledge_all(self) -> None:
        """Acknowledge all messages in place of the bridge, without recording them."""
        self._consume(lambda message: message.ack())

    def terminate(self, reason: str) -> None:
        """Terminate all messages in place of the bridge."""
        self._consume(lambda message: message.term(reason))

    def _consume(self, handle: Callable[[Message], Awaitable[Any]]) -> None:
        async def run(nats: NatsConnection) -> None:
            consumer = PullConsumer(nats, self._stream, self._durable)
            await consumer.open()
            for message in await consumer.pull(1000, 5):
                await handle(message)
            await nats.flush()

        self._connect(run)

    def publish_forged(self, event_id: str, **headers: str) -> None:
        """Publish a message that names an event of ours, as another client that may publish could."""
        subject = self.environ["ENTITLEMENT_NATS_SUBJECT"]
        message = encode_event(relay_support.payload(uuid.UUID(event_id), 7, user_id="forger"))
        self.administer(lambda jetstream: jetstream.publish(subject, message, headers={"event_id": event_id} | headers))

    def record(self) -> dict[str, Any]:
        """Run a recorder until it is idle, after an advisory has arrived."""
        advisories = self.environ["NOTIFICATION_NATS_ADVISORY_STREAM"]
        until("an advisory has arrived", lambda: self._count_messages(advisories) > 0)
        runtime = RecorderRuntime.build(self.environ)
        try:
            return runtime.run(relay_support.budget(10, until_idle=True))
        finally:
            runtime.close()

    def redrive(self) -> None:
        """Redrive all dead letters of the stream, as an operator does."""
        self.operate("redrive", kind="nats", all=True)

    def operate(self, action: str, **body: Any) -> dict[str, Any]:
        """Execute an operator's command on dead letters."""
        with Operations(self.environ, clock=lambda: self.now) as operations:
            return operations.execute(f"dead_letters.{action}", now=self.now, **body)


class ServerFiles:
    """The files of one NATS server: a copy of them, and the server with that copy as after a loss of power."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._folder: Path = server.state / "jetstream"
        self._copy: Path = server.state / f"copy-{uuid.uuid4().hex[:8]}"

    def copy(self) -> None:
        """Copy what is on the disk now."""
        shutil.rmtree(self._copy, ignore_errors=True)
        self._server.stop()
        shutil.copytree(self._folder, self._copy)
        self._server.start()

    def copy_running(self) -> None:
        """Copy what is on the disk now, while the server writes to it."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._folder, self._copy, ignore_dangling_symlinks=True, copy_function=_copy_if_present)

    def cut(self) -> None:
        """Kill the server, and start it with the copy: everything acknowledged since then is lost."""
        self._server.kill()
        shutil.rmtree(self._folder)
        shutil.copytree(self._copy, self._folder)
        self._server.start()


def _copy_if_present(source: str, target: str) -> None:
    """Copy a file, unless the server has removed it meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)
