"""D4: the debug route that lists a user's notifications."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from functions.show_inbox.handler import handler
from grantwire.database import Database, DatabaseSettings
from grantwire.events.decoding import decode
from grantwire.notifications.inbox import record_events
from grantwire.notifications.listing import NotificationList
from grantwire.settings import load
from grantwire.wiring.routes.show_inbox import NotificationListRuntime
from tests.support.client import event as http_event
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.plaintext import PLAINTEXT
from tests.support.workers.bridge_stream import event

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

ROUTE = "/debug/notification/inbox/{user_id}"


def get(database_url: str, user_id: str = "u_123", **query: str) -> tuple[int, Any]:
    """Return status and body of the response where the route is enabled."""
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    try:
        return respond(NotificationListRuntime(NotificationList(database)), user_id, **query)
    finally:
        database.close()


def respond(runtime: NotificationListRuntime, user_id: str = "u_123", **query: str) -> tuple[int, Any]:
    """Return status and body of the function's response."""
    request = http_event("GET", ROUTE, pathParameters={"user_id": user_id}, queryStringParameters=query or None)
    response = handler.with_runtime(runtime)(request, None)
    return response["statusCode"], json.loads(response["body"])


def add(database_url: str, **fields: Any) -> None:
    """Record one event in its own transaction."""
    with psycopg.connect(database_url) as connection:
        record_events(connection, [decode(event(**fields).SerializeToString(), {})])


def test_notifications_are_listed_newest_first(database_url: str, rows: Rows) -> None:
    """D4: with exactly these fields, and only those of the user."""
    add(database_url, version=1)
    add(database_url, version=2, event_type="EntitlementRevoked", stock_keeping_unit='a"\\é')
    add(database_url, user_id="u_9")
    rows.execute("UPDATE notifications SET status = 'SENT', next_retry_at = NULL, sent_at = now() WHERE version = 1")
    status, body = get(database_url)
    assert (status, list(body), body["user_id"]) == (200, ["user_id", "notifications"], "u_123")
    newest, oldest = body["notifications"]
    assert list(newest) == [
        "notification_id",
        "event_id",
        "event_type",
        "stock_keeping_unit",
        "version",
        "status",
        "attempt_count",
        "created_at",
        "sent_at",
    ]
    assert (newest["event_type"], newest["stock_keeping_unit"]) == ("EntitlementRevoked", 'a"\\é')
    assert (newest["version"], newest["status"], newest["attempt_count"]) == (2, "PENDING", 0)
    assert newest["sent_at"] is None
    assert oldest["status"] == "SENT"
    assert oldest["sent_at"].endswith("Z")
    assert oldest["created_at"] < newest["created_at"]


def test_times_are_listed_where_the_entitlement_has_them(database_url: str) -> None:
    """D4, K3: after the other fields, and as the event has them."""
    start, end = datetime(2027, 1, 1, tzinfo=UTC), datetime(2027, 1, 31, 1, 2, 3, 456789, tzinfo=UTC)
    for version, times in enumerate(({}, {"starts_at": start}, {"starts_at": start, "expires_at": end}), start=1):
        add(database_url, version=version, **times)
    both, started, plain = get(database_url)[1]["notifications"]
    assert list(both)[-3:] == ["sent_at", "starts_at", "expires_at"]
    assert (both["starts_at"], both["expires_at"]) == ("2027-01-01T00:00:00.000000Z", "2027-01-31T01:02:03.456789Z")
    assert started.keys() - plain.keys() == {"starts_at"}
    assert "expires_at" not in plain


def test_notifications_of_one_batch_are_ordered_by_version(database_url: str) -> None:
    """D4: they have the same created_at; the newer version of the entitlement comes first."""
    events = [decode(event(version=version).SerializeToString(), {}) for version in (2, 3, 1)]
    with psycopg.connect(database_url) as connection:
        record_events(connection, events)
    listed = get(database_url)[1]["notifications"]
    assert [item["version"] for item in listed] == [3, 2, 1]


def test_list_is_limited(database_url: str, rows: Rows) -> None:
    """D4: to a hundred, or fewer on request; an index returns them in order."""
    rows.execute("""
        INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload)
        SELECT gen_random_uuid(), gen_random_uuid(), 'EntitlementGranted', 'u_' || n % 50, 'item', 1, '{}'
          FROM generate_series(1, 10000) n""")
    rows.execute("ANALYZE notifications")
    assert len(get(database_url, "u_7")[1]["notifications"]) == 100
    assert len(get(database_url, "u_7", limit="3")[1]["notifications"]) == 3
    plan = rows.execute("""
        EXPLAIN SELECT * FROM notifications WHERE user_id = 'u_7'
         ORDER BY created_at DESC, version DESC, event_id DESC LIMIT 100""").fetchall()
    text = "\n".join(line["QUERY PLAN"] for line in plan)
    assert "notifications_inbox" in text
    assert "Sort" not in text


def test_unknown_user_has_empty_list(database_url: str) -> None:
    """D4: an unknown user is not an error."""
    assert get(database_url, "nobody") == (200, {"user_id": "nobody", "notifications": []})


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"limit": "1e1"}, {"after": "x"}])
def test_invalid_query_is_refused(database_url: str, query: dict[str, str]) -> None:
    """E5: with BAD_REQUEST."""
    status, body = get(database_url, **query)
    assert (status, body["code"]) == (400, "BAD_REQUEST")


@pytest.mark.parametrize("user_id", ["", " ", "u" * 129, "a\x00b"])
def test_invalid_user_id_is_refused(database_url: str, user_id: str) -> None:
    """E5: with the same rules as in every other request."""
    assert get(database_url, user_id)[0] == 400


@pytest.mark.parametrize("enabled", [{}, {"NOTIFICATION_INBOX_ENABLED": "false"}])
def test_route_is_disabled_by_default(database_url: str, enabled: dict[str, str]) -> None:
    """D4: it responds 404, like an unknown path."""
    environ = {**PLAINTEXT, "DATABASE_URL": database_url}
    disabled = NotificationListRuntime.build(environ | enabled)
    assert respond(disabled) == (404, {"code": "NOT_FOUND", "message": "no such path"})
    assert NotificationListRuntime.build(environ | {"NOTIFICATION_INBOX_ENABLED": "true"}).notification_list is not None


def test_function_imports_neither_nats_nor_protocol_buffers() -> None:
    """A caller waits for its cold start. Its event file asks for the user of the other event files."""
    program = "import sys; import functions.show_inbox.handler; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": PYTHONPATH, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"nats", "google.protobuf", "boto3"} & set(loaded.stdout.split())
    listed = json.loads((ROOT / "infra/events/show_inbox.json").read_text())
    granted = json.loads(json.loads((ROOT / "infra/events/grant.json").read_text())["body"])
    assert (listed["resource"], listed["pathParameters"]["user_id"]) == (ROUTE, granted["user_id"])
