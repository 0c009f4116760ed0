"""When each event of a deployed stack was committed, stored and sent, read from the tables and the stream."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, LiteralString

import nats
import psycopg

from infra.local.deployment.template import declared_parameters
from infra.local.servers.nats_users import INBOX_PREFIXES, WORKERS

if TYPE_CHECKING:
    from collections.abc import Collection

    from infra.local.stack.embedded import EmbeddedStack

_TIMEOUT_SECONDS = 30.0

_SENT: LiteralString = """
SELECT e.user_id, o.event_id::text, extract(epoch FROM e.updated_at)::float8, extract(epoch FROM n.sent_at)::float8
  FROM entitlements e
  JOIN outbox_events o ON o.aggregate_key = entitlement_aggregate_key(e.user_id, e.stock_keeping_unit)
  JOIN processed_events p ON p.event_id = o.event_id
  JOIN notifications n ON n.event_id = o.event_id
 WHERE e.user_id = ANY(%s) AND n.status = 'SENT'
"""


@dataclass(frozen=True, slots=True)
class EventTimes:
    """Unix times in seconds at which a grant was committed, stored in the stream and sent."""

    commit: float
    stream: float
    sent: float


def read_event_times(stack: EmbeddedStack, users: Collection[str]) -> list[EventTimes]:
    """Wait until the one grant of every user is SENT, and return its times.

    Raises RuntimeError unless each user has one sent notification and each event is in the stream exactly once.
    """
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    with psycopg.connect(stack.database_url, autocommit=True) as connection:
        while len(rows := connection.execute(_SENT, (list(users),)).fetchall()) < len(users):
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
    stored = asyncio.run(_read_stored_times(stack.nats_url))
    if Counter(user for user, *_ in rows) != Counter(users):
        raise RuntimeError(f"{len(users)} grants were acknowledged, but {len(rows)} notifications were sent")
    if wrong := [event for _, event, *_ in rows if len(stored.get(event, ())) != 1]:
        raise RuntimeError(f"{len(wrong)} events are not in the stream exactly once, for example {wrong[0]}")
    return [EventTimes(commit, stored[event][0], sent) for _, event, commit, sent in rows]


async def _read_stored_times(nats_url: str) -> dict[str, list[float]]:
    """Return the times at which JetStream stored each event: one time per event if there is no duplicate."""
    stream = declared_parameters()["EventStream"]
    connection = await nats.connect(nats_url, inbox_prefix=INBOX_PREFIXES[WORKERS])
    times: dict[str, list[float]] = {}
    try:
        context = connection.jetstream()
        state = (await context.stream_info(stream)).state
        for number in range(state.first_seq, state.last_seq + 1):
            message = await context.get_msg(stream, number)
            assert message.time is not None
            assert message.headers is not None
            times.setdefault(message.headers["event_id"], []).append(message.time.timestamp())
    finally:
        await connection.close()
    return times
