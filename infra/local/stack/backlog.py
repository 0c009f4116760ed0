"""How much is waiting, and what was given up: the part of `make status` that people on call look at first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import nats
import nats.errors
import nats.js.errors
import psycopg

from infra.local.deployment.template import declared_parameters

if TYPE_CHECKING:
    from infra.local.progress import Progress
    from infra.local.stack.deployed import DeployedStack

BY_STATE = """
SELECT 'entitlements', status, count(*) FROM entitlements GROUP BY status
UNION ALL
SELECT 'outbox events', status, count(*) FROM outbox_events GROUP BY status
UNION ALL
SELECT 'notifications', status, count(*) FROM notifications GROUP BY status
ORDER BY 1, 2
"""

# Heads only: what waits behind a FAILED event is counted by its state above.
OLDEST_PENDING = "SELECT round(extract(epoch FROM now() - min(created_at)), 1) FROM outbox_events WHERE ready"

DEAD_LETTERS = """
SELECT 'outbox', count(*) FROM outbox_events WHERE status = 'FAILED'
UNION ALL
SELECT 'notification', count(*) FROM notification_dlq WHERE status = 'OPEN'
UNION ALL
SELECT 'nats', count(*) FROM notification_nats_dlq WHERE status = 'OPEN'
"""


def show_backlog(stack: DeployedStack, progress: Progress) -> None:
    """Print counts by state, the age of the oldest pending event, the consumer's lag and open dead letters."""
    try:
        with psycopg.connect(stack.database_url, connect_timeout=2, autocommit=True) as connection:
            for table, status, count in connection.execute(BY_STATE).fetchall():
                progress.say(f"      {table} {status}: {count}")
            ((age,),) = connection.execute(OLDEST_PENDING).fetchall()
            progress.say(f"      oldest pending event: {'none' if age is None else f'{age} s'}")
            letters = [f"{kind} {count}" for kind, count in connection.execute(DEAD_LETTERS).fetchall()]
    except psycopg.Error as error:
        progress.say(f"      the tables cannot be read: {error}")
        return
    if any(server.alive() for server in stack.servers if server.name == "nats"):
        progress.say(f"      consumer lag: {asyncio.run(_lag(stack.nats_url))}")
    progress.say(f"      open dead letters: {', '.join(letters)}  (`make redrive ARGS=--help`)")


async def _lag(url: str) -> str:
    names = declared_parameters()
    try:
        client = await nats.connect(url, allow_reconnect=False, connect_timeout=2)
    except (OSError, TimeoutError, nats.errors.Error) as error:
        return f"not known, {error!r}"
    try:
        found = await client.jetstream().consumer_info(names["EventStream"], names["EventConsumer"])
    except nats.js.errors.NotFoundError:
        return "no consumer yet"
    finally:
        await client.close()
    return f"{found.num_pending} waiting, {found.num_ack_pending} delivered and not acknowledged"
