"""I4, O2, D1, R1, V1: time is the database's; a function whose own clock is wrong decides and writes the same."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import CHANGE, GRANTS, REVOKES
from tests.support.client import event as request
from tests.support.invocations import UNTIL_IDLE, Functions
from tests.support.workers.bridge_stream import Stream
from tests.support.workers.deliver_receiver import ReceivedRequest, Receiver
from tests.support.workers.relay_support import enqueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows

# Longer than every retention, lease, lifetime and partition of the defaults.
AHEAD = timedelta(days=400)
# What is written as a time lies at most a day ahead, which is how long a key is kept.
FURTHEST = timedelta(days=1, minutes=10)
TOKEN_LIFETIME = timedelta(days=90)
METHOD = "arn:aws:execute-api:us-east-1:123456789012:grantwire/local/POST/v1/entitlements/grants"

_COLUMNS = """
SELECT table_name, column_name FROM information_schema.columns JOIN information_schema.tables USING (table_name)
 WHERE columns.table_schema = 'public' AND table_type = 'BASE TABLE' AND data_type = 'timestamp with time zone'
 ORDER BY 1, 2
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Fails for a while for one user, and for ever for another."""
    answers = {"retried": 503, "refused": 400}

    def answer(received: ReceivedRequest) -> int:
        return answers.get(received.body["user_id"], 204)

    with Receiver(answer) as receiver:
        yield receiver


def _change(functions: Functions, path: str, key: str, **fields: str) -> dict[str, Any]:
    name = "grant" if path == GRANTS else "revoke"
    asked = request("POST", path, headers={"Idempotency-Key": key}, body=json.dumps(CHANGE | fields))
    answer: dict[str, Any] = functions.invoke(name, asked)
    return answer


def test_a_function_whose_clock_is_ahead_uses_the_database_s(
    environ: dict[str, str], owner_url: str, rows: Rows, receiver: Receiver
) -> None:
    """V1: nothing is due, expired or old that is not so by the database's clock, and no time is written but its own.

    Every function works in a process that is 400 days ahead of PostgreSQL and NATS.
    """
    environ |= {
        "TOKEN_ENVIRONMENT": "dev",
        "NOTIFICATION_SENDER": "webhook",
        "NOTIFICATION_WEBHOOK_URL": receiver.url,
        "NOTIFICATION_DELIVERY_BACKOFF_BASE": "1h",
        "NOTIFICATION_DELIVERY_BACKOFF_MAX": "2h",
    }
    (began,) = rows.execute("SELECT clock_timestamp() AS now").fetchall()
    partitions = _partitions(rows)
    _not_due_for_an_hour(rows)
    with Stream(environ) as stream, Functions(environ, clock_ahead=AHEAD) as functions:
        # A key lives for a day, and its answer is replayed; the times in it are the database's.
        granted = _change(functions, GRANTS, "k1", user_id="sent")
        assert granted["statusCode"] == 200
        again = _change(functions, GRANTS, "k1", user_id="sent")
        assert (again["headers"].get("Idempotent-Replayed"), again["body"]) == ("true", granted["body"])
        assert _change(functions, REVOKES, "k2", user_id="sent")["statusCode"] == 200
        for user_id in ("retried", "refused"):
            assert _change(functions, GRANTS, f"grant {user_id}", user_id=user_id)["statusCode"] == 200

        # Due by the database's clock: four events and their notifications, and none of those that wait for their time.
        assert functions.invoke("relay_outbox", UNTIL_IDLE)["published"] == 4
        stream.publish(b"poison")
        bridged = functions.invoke("bridge_events", UNTIL_IDLE)
        assert (bridged["recorded"], bridged["terminated"]) == (4, 1)
        for sent in (2, 0):
            delivered = functions.invoke("deliver_notifications", UNTIL_IDLE)
            assert delivered["sent"] == sent
        assert sorted(one.body["user_id"] for one in receiver.requests) == ["refused", "retried", "sent", "sent"]

        # Dead letters are recorded, are not too old to be redriven, and are not swept; nor is anything else.
        assert functions.invoke("record_advisories", UNTIL_IDLE)["recorded"] == 1
        operator = {"actor": "ann", "reason": "the receiver is repaired", "all": True}
        for kind in ("notification", "nats"):
            functions.invoke("redrive_dead_letters", {"action": "redrive", "kind": kind, **operator})
        for table in ("notification_dlq", "notification_nats_dlq"):
            assert rows.execute(f"SELECT status FROM {table}").fetchall() == [{"status": "REDRIVEN"}]  # noqa: S608
        swept = functions.invoke("sweep_retention", UNTIL_IDLE)
        assert (swept["deleted"], swept["forgotten"], swept["stuck"]) == ({}, 0, 0)
        assert _partitions(rows) == partitions
        assert functions.invoke("rebuild_read_model", {"source": "record"})["complete"]
    _assert_a_token_lives_for_its_time(environ | {"DATABASE_URL": owner_url})

    (ended,) = rows.execute("SELECT clock_timestamp() AS now").fetchall()
    _assert_times_between(rows, began["now"] - timedelta(minutes=10), ended["now"] + FURTHEST)
    told = rows.execute("""
        SELECT payload->>'occurred_at' AS at FROM outbox_events WHERE status = 'PUBLISHED'
        UNION ALL SELECT payload->>'occurred_at' FROM notifications WHERE payload ? 'occurred_at'""").fetchall()
    assert len(told) == 8
    for at in (json.loads(granted["body"])["updated_at"], *(row["at"] for row in told)):
        assert began["now"] <= datetime.fromisoformat(at) <= ended["now"]


def _not_due_for_an_hour(rows: Rows) -> None:
    """An event and a notification that wait for their next attempt, and one of each that a living worker has."""
    later = "now() + interval '1 hour'"
    for name, change in {
        "waits": f"next_retry_at = {later}",
        "works": f"status = '%s', locked_by = 'alive', locked_at = now(), lease_until = {later}",
    }.items():
        event_id = enqueue(rows, f"{name}/item1", 1)
        event_change = change.replace("%s", "IN_FLIGHT")
        rows.execute(f"UPDATE outbox_events SET {event_change} WHERE event_id = %s", (event_id,))  # noqa: S608
        notification_id = uuid.uuid4()
        rows.execute(
            "INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version,"
            " payload) VALUES (%s, gen_random_uuid(), 'EntitlementGranted', %s, 'item1', 1, '{}')",
            (notification_id, name),
        )
        notification_change = change.replace("%s", "PROCESSING")
        rows.execute(
            f"UPDATE notifications SET {notification_change} WHERE notification_id = %s",  # noqa: S608
            (notification_id,),
        )


def _assert_a_token_lives_for_its_time(environ: dict[str, str]) -> None:
    """A caller is let in with it, and out when the database says so."""
    lifetime = f"{TOKEN_LIFETIME.days}d"
    asked = {"action": "create", "name": "shop", "scopes": ["entitlements:write"], "expires_in": lifetime}
    with Functions(environ, clock_ahead=AHEAD) as functions:
        token = functions.invoke("manage_clients", asked)["token"]
        question = {"type": "TOKEN", "authorizationToken": f"Bearer {token}", "methodArn": METHOD}
        policy = functions.invoke("authorize_caller", question)
    assert policy["policyDocument"]["Statement"][0]["Effect"] == "Allow"


def _assert_times_between(rows: Rows, earliest: datetime, latest: datetime) -> None:
    """Every time in every table; a token's end alone lies further ahead."""
    tables = rows.execute(_COLUMNS).fetchall()
    assert len(tables) > 20
    written = set()
    for name in tables:
        table, column = name.values()
        (found,) = rows.execute(f"SELECT min({column}) AS first, max({column}) AS last FROM {table}").fetchall()  # noqa: S608
        if found["first"] is None:
            continue
        written.add(table)
        end = latest + TOKEN_LIFETIME if (table, column) == ("api_clients", "expires_at") else latest
        assert earliest <= found["first"] <= found["last"] <= end, f"{table}.{column}: {found}, now {datetime.now(UTC)}"
    assert written >= {
        *(
            "entitlements",
            "outbox_events",
            "idempotency_keys",
            "processed_events",
            "notifications",
            "user_entitlements",
        ),
        *("notification_dlq", "notification_nats_dlq", "operator_actions", "api_clients", "entitlement_audit"),
    }


def _partitions(rows: Rows) -> list[str]:
    found = rows.execute(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'entitlement_audit'::regclass"
    )
    return sorted(row["name"] for row in found)
