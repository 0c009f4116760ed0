"""I4, O2, D1, R1, V1, K1 to K6: all times come from the database, so a wrong clock in a function has no effect."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.checks import CHECK
from tests.support.client import BATCHES, CHANGE, GRANTS, REVOKES, item
from tests.support.client import event as request
from tests.support.invocations import UNTIL_IDLE, Functions
from tests.support.times import pass_time
from tests.support.workers.bridge_stream import Stream, event
from tests.support.workers.deliver_receiver import ReceivedRequest, Receiver
from tests.support.workers.relay_support import enqueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows

# Longer than every default retention, lease, lifetime and partition.
CLOCK_AHEAD = timedelta(days=400)
# The latest time that is written is the expiry of an idempotency key, one day ahead.
MAX_FUTURE = timedelta(days=1, minutes=10)
TOKEN_LIFETIME = timedelta(days=90)
METHOD_ARN = "arn:aws:execute-api:us-east-1:123456789012:grantwire/local/POST/v1/entitlements/grants"

_COLUMNS = """
SELECT table_name, column_name FROM information_schema.columns JOIN information_schema.tables USING (table_name)
 WHERE columns.table_schema = 'public' AND table_type = 'BASE TABLE' AND data_type = 'timestamp with time zone'
 ORDER BY 1, 2
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that fails temporarily for one user and permanently for another."""
    statuses = {"retried": 503, "refused": 400}

    def respond(received: ReceivedRequest) -> int:
        return statuses.get(received.body["user_id"], 204)

    with Receiver(respond) as receiver:
        yield receiver


def _insert_command(rows: Rows, kind: str, /, **arguments: Any) -> None:
    rows.execute(
        "INSERT INTO operator_commands (command_id, kind, arguments, actor, reason, source)"
        " VALUES (gen_random_uuid(), %s, %s, 'ann', 'the receiver is repaired', 'a test')",
        (kind, json.dumps(arguments)),
    )


def _change(functions: Functions, path: str, key: str, **fields: str) -> dict[str, Any]:
    name = "grant" if path == GRANTS else "revoke"
    event = request("POST", path, headers={"Idempotency-Key": key}, body=json.dumps(CHANGE | fields))
    response: dict[str, Any] = functions.invoke(name, event)
    return response


def test_functions_use_the_clock_of_the_database(
    environ: dict[str, str], owner_url: str, rows: Rows, receiver: Receiver
) -> None:
    """V1: only the clock of the database decides what is due, expired or old, and only its times are written.

    Every function runs in a process whose clock is 400 days ahead of PostgreSQL and NATS.
    """
    environ |= {
        "TOKEN_ENVIRONMENT": "dev",
        **receiver.environ,
        "NOTIFICATION_DELIVERY_BACKOFF_BASE": "1h",
        "NOTIFICATION_DELIVERY_BACKOFF_MAX": "2h",
    }
    (start,) = rows.execute("SELECT clock_timestamp() AS now").fetchall()
    partitions = _partitions(rows)
    _insert_work_due_in_an_hour(rows)
    with Stream(environ) as stream, Functions(environ, clock_ahead=CLOCK_AHEAD) as functions:
        # The stored response is replayed, so the key has not expired.
        granted = _change(functions, GRANTS, "k1", user_id="sent")
        assert granted["statusCode"] == 200
        again = _change(functions, GRANTS, "k1", user_id="sent")
        assert (again["headers"].get("Idempotent-Replayed"), again["body"]) == ("true", granted["body"])
        assert _change(functions, REVOKES, "k2", user_id="sent")["statusCode"] == 200
        for user_id in ("retried", "refused"):
            assert _change(functions, GRANTS, f"grant {user_id}", user_id=user_id)["statusCode"] == 200

        # Only the four new events and their notifications are due by the clock of the database.
        assert functions.invoke("relay_outbox", UNTIL_IDLE)["published"] == 4
        late = event(user_id="late", occurred_at=start["now"])
        stream.publish_forged(late)  # its audit row comes later: only the dead letter of an event can be redriven
        bridged = functions.invoke("bridge_events", UNTIL_IDLE)
        assert (bridged["recorded"], bridged["terminated"]) == (4, 1)
        for sent in (2, 0):
            delivered = functions.invoke("deliver_notifications", UNTIL_IDLE)
            assert delivered["sent"] == sent
        assert sorted(received.body["user_id"] for received in receiver.requests) == [
            "refused",
            "retried",
            "sent",
            "sent",
        ]

        # Dead letters are not too old to be redriven, and the sweep deletes nothing.
        assert functions.invoke("record_advisories", UNTIL_IDLE)["recorded"] == 1
        stream.audit(late)
        for kind in ("notification", "nats"):
            _insert_command(rows, "dead_letters.redrive", kind=kind, all=True)
        assert functions.invoke("run_operator_commands", UNTIL_IDLE)["commands_done"] == 2
        for table in ("notification_dlq", "notification_nats_dlq"):
            assert rows.execute(f"SELECT status FROM {table}").fetchall() == [{"status": "REDRIVEN"}]  # noqa: S608
        swept = functions.invoke("sweep_retention", UNTIL_IDLE)
        assert (swept["deleted"], swept["forgotten"], swept["stuck"]) == ({}, 0, 0)
        assert _partitions(rows) == partitions
        _insert_command(rows, "read_model.rebuild")
        assert functions.invoke("run_operator_commands", UNTIL_IDLE)["commands_done"] == 1
    _assert_new_token_is_valid(environ | {"DATABASE_URL": owner_url})

    (end,) = rows.execute("SELECT clock_timestamp() AS now").fetchall()
    _assert_times_between(rows, start["now"] - timedelta(minutes=10), end["now"] + MAX_FUTURE)
    occurred = rows.execute("""
        SELECT payload->>'occurred_at' AS at FROM outbox_events WHERE status = 'PUBLISHED'
        UNION ALL SELECT payload->>'occurred_at' FROM notifications WHERE payload ? 'occurred_at'""").fetchall()
    assert len(occurred) == 8
    for at in (json.loads(granted["body"])["updated_at"], *(row["at"] for row in occurred)):
        assert start["now"] <= datetime.fromisoformat(at) <= end["now"]


@pytest.mark.parametrize("ahead", [timedelta(hours=5), timedelta(hours=-5)], ids=["ahead", "behind"])
def test_starts_and_ends_follow_the_clock_of_the_database(
    environ: dict[str, str], rows: Rows, ahead: timedelta
) -> None:
    """K1 to K6: the clock of a function neither refuses nor ends an entitlement, and is in no response."""
    (row,) = rows.execute("SELECT clock_timestamp() AS now").fetchall()
    later, ended = ((row["now"] + timedelta(hours=hours)).isoformat() for hours in (1, -1))
    with Functions(environ, clock_ahead=ahead) as functions:
        assert _change(functions, GRANTS, "k1", expires_at=later)["statusCode"] == 200
        assert "in the future" in _change(functions, GRANTS, "k2", user_id="late", expires_at=ended)["body"]
        assert '"SCHEDULED"' in _change(functions, GRANTS, "k3", user_id="scheduled", starts_at=later)["body"]
        items = [item("k4", "extend", expires_at=later), item("k5", user_id="late", expires_at=ended)]
        batch = functions.invoke("change_batch", request("POST", BATCHES, body=json.dumps({"items": items})))
        assert [result["status_code"] for result in json.loads(batch["body"])["results"]] == [409, 400]

        check = _check(functions)
        (row,) = rows.execute("SELECT clock_timestamp() AS now").fetchall()
        assert (check["allowed"], _check(functions, user_id="scheduled")["status"]) == (True, "SCHEDULED")
        assert timedelta(0) <= row["now"] - datetime.fromisoformat(check["checked_at"]) < timedelta(minutes=1)
        assert _check(functions, at=check["checked_at"])["status"] == "ACTIVE"
        assert functions.invoke("expire_entitlements", UNTIL_IDLE)["expired"] == 0
        pass_time(rows, 2)
        assert _check(functions)["status"] == "EXPIRED"
        recorded = functions.invoke("expire_entitlements", UNTIL_IDLE)
        assert (recorded["started"], recorded["expired"]) == (1, 1)


def _check(functions: Functions, user_id: str = "u_123", **query: str) -> dict[str, Any]:
    path = {"user_id": user_id, "stock_keeping_unit": "item1"}
    response = functions.invoke(
        "check_entitlement", request("GET", CHECK, pathParameters=path, queryStringParameters=query or None)
    )
    body: dict[str, Any] = json.loads(response["body"])
    return body


def _insert_work_due_in_an_hour(rows: Rows) -> None:
    """Insert an event and a notification that wait for their next attempt, and one of each with a valid lease."""
    later = "now() + interval '1 hour'"
    for name, change in {
        "waits": f"next_retry_at = {later}, attempt_count = 1",
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


def _assert_new_token_is_valid(environ: dict[str, str]) -> None:
    """Assert that a new token is valid although the clock of the function is past its lifetime."""
    lifetime = f"{TOKEN_LIFETIME.days}d"
    command = {"action": "create", "name": "shop", "scopes": ["entitlements:write"], "expires_in": lifetime}
    command |= {"actor": "ann", "reason": "a new shop"}
    with Functions(environ, clock_ahead=CLOCK_AHEAD) as functions:
        token = functions.invoke("manage_clients", command)["token"]
        event = {"type": "TOKEN", "authorizationToken": f"Bearer {token}", "methodArn": METHOD_ARN}
        policy = functions.invoke("authorize_caller", event)
    assert policy["policyDocument"]["Statement"][0]["Effect"] == "Allow"


def _assert_times_between(rows: Rows, earliest: datetime, latest: datetime) -> None:
    """Check every time in every table. Only the expiry of a client may be later."""
    columns = rows.execute(_COLUMNS).fetchall()
    assert len(columns) > 20
    written = set()
    for row in columns:
        table, column = row.values()
        select = f"SELECT min({column}) AS first, max({column}) AS last FROM {table} WHERE isfinite({column})"  # noqa: S608
        (times,) = rows.execute(select).fetchall()
        if times["first"] is None:
            continue
        written.add(table)
        limit = latest + TOKEN_LIFETIME if (table, column) == ("api_clients", "expires_at") else latest
        assert earliest <= times["first"] <= times["last"] <= limit, (
            f"{table}.{column}: {times}, now {datetime.now(UTC)}"
        )
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
    partitions = rows.execute(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'entitlement_audit'::regclass"
    )
    return sorted(row["name"] for row in partitions)
