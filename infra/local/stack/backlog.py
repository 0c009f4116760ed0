"""The backlog and the open dead letters: the part of the state that matters most to an operator on call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import nats
import nats.errors
import nats.js.errors
import psycopg

from infra.local.servers.nats_users import INBOX_PREFIXES, WORKERS, Names

if TYPE_CHECKING:
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


def read_backlog(stack: DeployedStack) -> dict[str, Any]:
    """Return counts by status, the age of the oldest pending event, the consumer lag and the open dead letters.

    If the tables cannot be read, the only entry is `error`.
    """
    try:
        with psycopg.connect(stack.database_url, connect_timeout=2, autocommit=True) as connection:
            counts = connection.execute(COUNTS_BY_STATUS).fetchall()
            ((age,),) = connection.execute(OLDEST_PENDING).fetchall()
            dead_letters: dict[str, int] = dict(connection.execute(DEAD_LETTERS).fetchall())
    except psycopg.Error as error:
        return {"error": f"could not read the tables: {error}"}
    nats_is_alive = any(server.is_alive() for server in stack.servers if server.name == "nats")
    return {
        "counts": [{"table": table, "status": status, "count": count} for table, status, count in counts],
        "oldest_pending_seconds": None if age is None else float(age),
        "consumer_lag": asyncio.run(_consumer_lag(stack.nats_url)) if nats_is_alive else None,
        "dead_letters": dead_letters,
    }


async def _consumer_lag(url: str) -> str:
    try:
        client = await nats.connect(url, allow_reconnect=False, connect_timeout=2, inbox_prefix=INBOX_PREFIXES[WORKERS])
    except (OSError, TimeoutError, nats.errors.Error) as error:
        return f"unknown: {error!r}"
    try:
        consumer = await client.jetstream().consumer_info(Names().stream, Names().durable)
    except nats.js.errors.NotFoundError:
        return "no consumer yet"
    finally:
        await client.close()
    return f"{consumer.num_pending} waiting, {consumer.num_ack_pending} delivered but not acknowledged"
