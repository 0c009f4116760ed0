"""Where the events of a deployed stack have been, and when: read afterwards from the tables and the stream."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, LiteralString

import nats
import psycopg

from infra.local.deployment.template import declared_parameters

if TYPE_CHECKING:
    from collections.abc import Collection

    from infra.local.stack.embedded import EmbeddedStack

_PATIENCE = 30.0

_SENT: LiteralString = """
SELECT e.user_id, o.event_id::text, extract(epoch FROM e.updated_at)::float8, extract(epoch FROM n.sent_at)::float8
  FROM entitlements e
  JOIN outbox_events o ON o.aggregate_key = entitlement_aggregate_key(e.user_id, e.stock_keeping_unit)
  JOIN processed_events p ON p.event_id = o.event_id
  JOIN notifications n ON n.event_id = o.event_id
 WHERE e.user_id = ANY(%s) AND n.status = 'SENT'
"""


@dataclass(frozen=True, slots=True)
class Way:
    """When a grant was committed, when it was in the stream and when it was sent, in seconds."""

    commit: float
    stream: float
    sent: float


def ways_of(stack: EmbeddedStack, users: Collection[str]) -> list[Way]:
    """The way of every user's one grant; each must have gone it, and once."""
    deadline = time.monotonic() + _PATIENCE
    with psycopg.connect(stack.database_url, autocommit=True) as connection:
        while len(rows := connection.execute(_SENT, (list(users),)).fetchall()) < len(users):
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
    stored = asyncio.run(_stored(stack.nats_url))
    if Counter(user for user, *_ in rows) != Counter(users):
        raise RuntimeError(f"{len(users)} grants were acknowledged, but {len(rows)} notifications sent")
    if doubled := [event for _, event, *_ in rows if len(stored.get(event, ())) != 1]:
        raise RuntimeError(f"{len(doubled)} events are not in the stream once, such as {doubled[0]}")
    return [Way(commit, stored[event][0], sent) for _, event, commit, sent in rows]


async def _stored(nats_url: str) -> dict[str, list[float]]:
    """When JetStream stored each event: once, if all is well."""
    stream = declared_parameters()["EventStream"]
    connection = await nats.connect(nats_url)
    found: dict[str, list[float]] = {}
    try:
        context = connection.jetstream()
        state = (await context.stream_info(stream)).state
        for number in range(state.first_seq, state.last_seq + 1):
            message = await context.get_msg(stream, number)
            assert message.time is not None
            assert message.headers is not None
            found.setdefault(message.headers["event_id"], []).append(message.time.timestamp())
    finally:
        await connection.close()
    return found
