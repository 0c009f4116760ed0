"""The backlog and the open dead letters: the part of `make status` that matters most to an operator on call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import nats
import nats.errors
import nats.js.errors
import psycopg

from infra.local.deployment.template import declared_parameters
from infra.local.servers.nats_users import INBOX_PREFIXES, WORKERS

if TYPE_CHECKING:
    from infra.local.progress import Progress
    from infra.local.stack.deployed import DeployedStack

COUNTS_BY_STATUS = """
SELECT 'entitlements', status, count(*) FROM entitlements GROUP BY status
UNION ALL
SELECT 'outbox events', status, count(*) FROM outbox_events GROUP BY status
UNION ALL
SELECT 'notifications', status, count(*) FROM notifications GROUP BY status
ORDER BY 1, 2
"""

# Heads only: an event behind a FAILED one is not ready, but it is counted by its status above.
OLDEST_PENDING = "SELECT round(extract(epoch FROM now() - min(created_at)), 1) FROM outbox_events WHERE ready"

DEAD_LETTERS = """
SELECT 'outbox', count(*) FROM outbox_events WHERE status = 'FAILED'
UNION ALL
SELECT 'notification', count(*) FROM notification_dlq WHERE status = 'OPEN'
UNION ALL
SELECT 'nats', count(*) FROM notification_nats_dlq WHERE status = 'OPEN'
"""


def print_backlog(stack: DeployedStack, progress: Progress) -> None:
    """Print counts by status, the age of the oldest pending event, the consumer lag and the open dead letters."""
    try:
        with psycopg.connect(stack.database_url, connect_timeout=2, autocommit=True) as connection:
            for table, status, count in connection.execute(COUNTS_BY_STATUS).fetchall():
                progress.print_line(f"      {table} {status}: {count}")
            ((age,),) = connection.execute(OLDEST_PENDING).fetchall()
            progress.print_line(f"      oldest pending event: {'none' if age is None else f'{age} s'}")
            dead_letters = [f"{kind} {count}" for kind, count in connection.execute(DEAD_LETTERS).fetchall()]
    except psycopg.Error as error:
        progress.print_line(f"      could not read the tables: {error}")
        return
    if any(server.is_alive() for server in stack.servers if server.name == "nats"):
        progress.print_line(f"      consumer lag: {asyncio.run(_consumer_lag(stack.nats_url))}")
    progress.print_line(f"      open dead letters: {', '.join(dead_letters)}  (`make redrive ARGS=--help`)")


async def _consumer_lag(url: str) -> str:
    parameters = declared_parameters()
    try:
        client = await nats.connect(url, allow_reconnect=False, connect_timeout=2, inbox_prefix=INBOX_PREFIXES[WORKERS])
    except (OSError, TimeoutError, nats.errors.Error) as error:
        return f"unknown: {error!r}"
    try:
        consumer = await client.jetstream().consumer_info(parameters["EventStream"], parameters["EventConsumer"])
    except nats.js.errors.NotFoundError:
        return "no consumer yet"
    finally:
        await client.close()
    return f"{consumer.num_pending} waiting, {consumer.num_ack_pending} delivered but not acknowledged"
