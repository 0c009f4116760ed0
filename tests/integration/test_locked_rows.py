"""O2, D1, V1: a claim skips rows that another transaction has locked.

A claim that waited for the lock would fail with a lock timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from tests.support.invocations import UNTIL_IDLE, Functions
from tests.support.lock_timeouts import never_wait
from tests.support.workers.relay_support import drain, enqueue, read_stream, versions_by_aggregate

if TYPE_CHECKING:
    from tests.integration.conftest import Rows


def test_relay_skips_a_locked_head(environ: dict[str, str], owner_url: str, rows: Rows) -> None:
    """O2, V1: the other aggregates are published immediately, and the locked one after it is unlocked."""
    for aggregate in ("locked/item1", "free/item1"):
        for version in (1, 2, 3):
            enqueue(rows, aggregate, version)
    never_wait(rows)
    lock = "SELECT FROM outbox_events WHERE aggregate_key = 'locked/item1' AND aggregate_version = 1 FOR UPDATE"
    with psycopg.connect(owner_url) as other:
        assert other.execute(lock).rowcount == 1
        assert drain(environ)["published"] == 3
        assert versions_by_aggregate(read_stream(environ)) == {"free/item1": [1, 2, 3]}
    assert drain(environ)["published"] == 3
    assert versions_by_aggregate(read_stream(environ)) == {"free/item1": [1, 2, 3], "locked/item1": [1, 2, 3]}


def test_delivery_skips_a_locked_notification(environ: dict[str, str], owner_url: str, rows: Rows) -> None:
    """D1, V1: the other notifications are sent immediately, and the locked one after it is unlocked."""
    rows.execute("""
        INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload,
                                   next_retry_at)
        SELECT gen_random_uuid(), gen_random_uuid(), 'EntitlementGranted', 'u' || n, 'item1', 1, '{}',
               now() - interval '1 h' + n * interval '1 s'
          FROM generate_series(1, 3) n""")
    never_wait(rows)
    sent = "SELECT user_id FROM notifications WHERE status = 'SENT' ORDER BY user_id"
    with Functions(environ) as functions:
        with psycopg.connect(owner_url) as other:
            assert other.execute("SELECT FROM notifications WHERE user_id = 'u1' FOR UPDATE").rowcount == 1
            assert functions.invoke("deliver_notifications", UNTIL_IDLE)["sent"] == 2
            assert [row["user_id"] for row in rows.execute(sent)] == ["u2", "u3"]
        assert functions.invoke("deliver_notifications", UNTIL_IDLE)["sent"] == 1
    assert [row["user_id"] for row in rows.execute(sent)] == ["u1", "u2", "u3"]
