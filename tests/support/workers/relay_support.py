"""Helpers for tests of the relay: enqueue events, run relays, read the stream."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from nats.js.api import AckPolicy, ConsumerConfig

from grantwire.events.v1 import EntitlementEvent
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.settings import NatsSettings
from grantwire.settings import load
from grantwire.wiring.workers.relay_outbox import RelayRuntime
from grantwire.workers.budget import Budget
from tests.support.nats_users import as_admin
from tests.support.paths import ROOT
from tests.support.plaintext import PLAINTEXT
from tests.support.run import program_environment
from tests.support.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    import psycopg
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

_ENQUEUE = "SELECT outbox_enqueue(%s, %s, %s, %s, %s::jsonb, %s)"


def worker_environ(database_url: str, nats_url: str) -> dict[str, str]:
    """Return the environment of a worker, with streams that no other test uses."""
    name = uuid.uuid4().hex[:12]
    return {
        **PLAINTEXT,
        "DATABASE_URL": database_url,
        "NATS_URL": nats_url,
        "ENTITLEMENT_NATS_SUBJECT": f"entitlements.{name}",
        "ENTITLEMENT_NATS_STREAM": f"EVENTS_{name}",
        "NOTIFICATION_NATS_STREAM": f"EVENTS_{name}",
        "NOTIFICATION_NATS_DURABLE": "bridge",
        "NOTIFICATION_NATS_ADVISORY_STREAM": f"EVENTS_{name}_ADVISORIES",  # as in the template
    }


def payload(event_id: uuid.UUID, version: int, **fields: Any) -> dict[str, Any]:
    """Return a payload as change_entitlement makes it; `fields` override its values."""
    return {
        "event_id": str(event_id),
        "event_type": "EntitlementGranted",
        "occurred_at": "2026-11-16T03:00:00.123456Z",
        "user_id": "u_1",
        "stock_keeping_unit": "item1",
        "source": "purchase",
        "source_id": "p_1",
        "version": version,
    } | fields


def enqueue(connection: psycopg.Connection[Any], aggregate: str, version: int, **fields: Any) -> uuid.UUID:
    """Enqueue one event; `fields` override values of its payload."""
    event_id = uuid.uuid4()
    body = json.dumps(payload(event_id, version, **fields))
    connection.execute(_ENQUEUE, (event_id, "EntitlementGranted", aggregate, version, body, "1-0-0"))
    return event_id


def enqueue_many(connection: psycopg.Connection[Any], aggregates: int, each: int, prefix: str = "u") -> None:
    """Enqueue `each` events for each of `aggregates` aggregates, one aggregate after the other."""
    with connection.transaction():
        for aggregate in range(aggregates):
            for version in range(1, each + 1):
                enqueue(connection, f"{prefix}{aggregate}/item1", version)


@contextmanager
def relay(environ: Mapping[str, str], now: datetime | None = None) -> Iterator[RelayRuntime]:
    """Build a relay; with `now` it uses this time instead of the database's."""
    runtime = RelayRuntime.build(environ, clock=lambda: now)
    try:
        yield runtime
    finally:
        runtime.close()


def drain(environ: Mapping[str, str], now: datetime | None = None) -> dict[str, int]:
    """Run one relay until it is idle; return its result."""
    with relay(environ, now) as runtime:
        return runtime.run(budget(WAIT_SECONDS, until_idle=True))


def budget(seconds: float, *, until_idle: bool = False) -> Budget:
    """Return a budget that ends `seconds` from now."""
    return Budget(time.monotonic() + seconds, until_idle)


class Published(NamedTuple):
    """A message in the event stream."""

    sequence: int
    headers: dict[str, str]
    event: EntitlementEvent


def read_stream(environ: Mapping[str, str]) -> list[Published]:
    """Return all messages of the event stream, in order."""
    return asyncio.run(_read_stream(environ))


async def _read_stream(environ: Mapping[str, str]) -> list[Published]:
    nats = NatsConnection(load(NatsSettings, as_admin(environ)))
    await nats.connect()
    try:
        return [
            Published(message.metadata.sequence.stream, dict(message.headers or {}), _decode(message.data))
            for message in await _fetch_all(nats.jetstream, environ)
        ]
    finally:
        await nats.close()


async def _fetch_all(jetstream: JetStreamContext, environ: Mapping[str, str]) -> list[Msg]:
    name = environ["ENTITLEMENT_NATS_STREAM"]
    count = (await jetstream.stream_info(name)).state.messages
    reader = await jetstream.pull_subscribe(
        environ["ENTITLEMENT_NATS_SUBJECT"], stream=name, config=ConsumerConfig(ack_policy=AckPolicy.NONE)
    )
    messages: list[Msg] = []
    while len(messages) < count:
        messages += await reader.fetch(500, timeout=WAIT_SECONDS)
    await reader.unsubscribe()
    return messages


def _decode(data: bytes) -> EntitlementEvent:
    event = EntitlementEvent()
    event.ParseFromString(data)
    return event


def versions_by_aggregate(messages: list[Published]) -> dict[str, list[int]]:
    """Return the versions of each aggregate's events, in the order of their first appearance."""
    seen: set[str] = set()
    versions: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        if message.headers["event_id"] not in seen:
            seen.add(message.headers["event_id"])
            versions[message.headers["aggregate_key"]].append(message.event.version)
    return dict(versions)


def start_worker(module: str, environ: Mapping[str, str], **more: str) -> subprocess.Popen[str]:
    """Start `tests.support.workers.<module>` as a separate process."""
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.support.workers.{module}"],
        env={**program_environment(), **environ, **more},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
