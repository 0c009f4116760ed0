"""What the relay's tests share: events in the outbox, relays over them, and the stream that they fill."""

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
from grantwire.runtime.relay import RelayRuntime
from grantwire.settings import load
from grantwire.workers.budget import Budget
from infra.local.system.processes import wait_until
from tests.support.paths import ROOT
from tests.support.plaintext import PLAINTEXT
from tests.support.run import program_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    import psycopg
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

_ENQUEUE = "SELECT outbox_enqueue(%s, %s, %s, %s, %s::jsonb, %s)"


def worker_environ(database_url: str, nats_url: str) -> dict[str, str]:
    """The environment of a worker, with streams that nobody else has."""
    name = uuid.uuid4().hex[:12]
    return {
        **PLAINTEXT,
        "DATABASE_URL": database_url,
        "NATS_URL": nats_url,
        "ENTITLEMENT_NATS_SUBJECT": f"entitlements.{name}",
        "ENTITLEMENT_NATS_STREAM": f"EVENTS_{name}",
        "NOTIFICATION_NATS_STREAM": f"EVENTS_{name}",
        "NOTIFICATION_NATS_DURABLE": "bridge",
        "NOTIFICATION_NATS_ADVISORY_STREAM": f"ADVISORIES_{name}",
    }


def payload(event_id: uuid.UUID, version: int, **fields: Any) -> dict[str, Any]:
    """A payload as change_entitlement makes it; `fields` replace those of it."""
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
    """Add one event as the outbox's own function does."""
    event_id = uuid.uuid4()
    body = json.dumps(payload(event_id, version, **fields))
    connection.execute(_ENQUEUE, (event_id, "EntitlementGranted", aggregate, version, body, "1-0-0"))
    return event_id


def enqueue_many(connection: psycopg.Connection[Any], aggregates: int, each: int, prefix: str = "u") -> None:
    """`each` events for each of as many aggregates, all versions of one before those of the next."""
    with connection.transaction():
        for aggregate in range(aggregates):
            for version in range(1, each + 1):
                enqueue(connection, f"{prefix}{aggregate}/item1", version)


@contextmanager
def relay(environ: Mapping[str, str], now: datetime | None = None) -> Iterator[RelayRuntime]:
    """A relay of one's own, at a time of one's own."""
    runtime = RelayRuntime.build(environ, clock=lambda: now)
    try:
        yield runtime
    finally:
        runtime.close()


def drain(environ: Mapping[str, str], now: datetime | None = None) -> dict[str, int]:
    """Run one relay until there is nothing left to do."""
    with relay(environ, now) as runtime:
        return runtime.run(budget(30, until_idle=True))


def budget(seconds: float, *, until_idle: bool = False) -> Budget:
    """Work for so long, from now on."""
    return Budget(time.monotonic() + seconds, until_idle)


class Published(NamedTuple):
    """A message of the stream."""

    sequence: int
    headers: dict[str, str]
    event: EntitlementEvent


def stream(environ: Mapping[str, str]) -> list[Published]:
    """Everything in the event stream, first to last."""
    return asyncio.run(_read(environ))


async def _read(environ: Mapping[str, str]) -> list[Published]:
    nats = NatsConnection(load(NatsSettings, environ))
    await nats.connect()
    try:
        return [
            Published(message.metadata.sequence.stream, dict(message.headers or {}), _decoded(message.data))
            for message in await _messages(nats.jetstream, environ)
        ]
    finally:
        await nats.close()


async def _messages(jetstream: JetStreamContext, environ: Mapping[str, str]) -> list[Msg]:
    name = environ["ENTITLEMENT_NATS_STREAM"]
    count = (await jetstream.stream_info(name)).state.messages
    reader = await jetstream.pull_subscribe(
        environ["ENTITLEMENT_NATS_SUBJECT"], stream=name, config=ConsumerConfig(ack_policy=AckPolicy.NONE)
    )
    messages: list[Msg] = []
    while len(messages) < count:
        messages += await reader.fetch(500, timeout=5)
    await reader.unsubscribe()
    return messages


def _decoded(data: bytes) -> EntitlementEvent:
    event = EntitlementEvent()
    event.ParseFromString(data)
    return event


def versions(messages: list[Published]) -> dict[str, list[int]]:
    """For each aggregate the versions of its events, in the order of their first appearance."""
    seen: set[str] = set()
    found: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        if message.headers["event_id"] not in seen:
            seen.add(message.headers["event_id"])
            found[message.headers["aggregate_key"]].append(message.event.version)
    return dict(found)


def start(module: str, environ: Mapping[str, str], **more: str) -> subprocess.Popen[str]:
    """Start `tests.support.workers.<module>` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.support.workers.{module}"],
        env={**program_environment(), **environ, **more},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def until(what: str, condition: Callable[[], bool], seconds: float = 15) -> None:
    """Wait for something that happens elsewhere."""
    assert wait_until(condition, seconds, every=0.005), f"in vain: {what}"
