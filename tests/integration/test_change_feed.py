"""K9: the change feed has every applied change once, and nothing appears behind a cursor."""

from __future__ import annotations

import json
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from functions.list_changes.handler import handler
from grantwire.feed import report_lag
from grantwire.feed.cursor import FeedCursor
from tests.support.client import CALLER, Client, event
from tests.support.concurrency import run_concurrently
from tests.support.feed import CHANGES, SNAPSHOT, FeedClient
from tests.support.invocations import Functions
from tests.support.paths import ROOT
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows

_CHANGE = """
SELECT outcome
  FROM change_entitlement('route', %(key)s, 'v1:0', '1 day', 2000, '0', '0', jsonb_populate_record(
         NULL::entitlement_change, jsonb_build_object(
         'operation_id', gen_random_uuid(), 'operation', %(operation)s::text, 'user_id', %(user_id)s::text,
         'stock_keeping_unit', 'item1', 'reason', 'purchase', 'purchase_id', 'p_1', 'caller', 'tests')))
"""
_SELECT_APPLIED = "SELECT operation_id::text FROM entitlement_audit WHERE outcome = 'APPLIED'"


@pytest.fixture
def feed(database_url: str) -> Iterator[FeedClient]:
    """A consumer of the feed."""
    with FeedClient(database_url) as feed:
        yield feed


def change(connection: psycopg.Connection[Any], user_id: str, operation: str = "GRANT") -> None:
    """Change an entitlement in the transaction of the connection."""
    parameters = {"key": str(uuid.uuid4()), "operation": operation, "user_id": user_id}
    row = connection.execute(_CHANGE, parameters).fetchone()
    assert row == ("APPLIED",)


def begin_transaction(connection: psycopg.Connection[Any]) -> None:
    """Begin a transaction that has an id but has changed no entitlement yet."""
    connection.execute("SELECT pg_current_xact_id()")


def test_change_has_the_fields_of_the_document(feed: FeedClient, client: Client, rows: Rows) -> None:
    """K9: exactly these fields in this order; refused requests and replays are not changes."""
    granted = client.grant("k1").json
    client.grant("k1")
    client.grant("k2")
    client.revoke("k3", reason='re"fund', purchase_id="p_ü")
    (first, second), _ = feed.follow(None, 2)
    audited = rows.execute(
        "SELECT operation_id::text FROM entitlement_audit WHERE outcome = 'APPLIED' ORDER BY version"
    ).fetchall()
    assert list(first.items()) == [
        ("event_id", audited[0]["operation_id"]),
        ("event_type", "EntitlementGranted"),
        ("user_id", "u_123"),
        ("stock_keeping_unit", "item1"),
        ("status", "ACTIVE"),
        ("version", 1),
        ("occurred_at", granted["updated_at"]),
        ("reason", "purchase"),
        ("purchase_id", "p_456"),
        ("caller", "tests"),
    ]
    assert (second["event_type"], second["status"], second["version"]) == ("EntitlementRevoked", "REVOKED", 2)
    assert (second["reason"], second["purchase_id"]) == ('re"fund', "p_ü")


def test_change_has_its_times_and_every_type(feed: FeedClient, rows: Rows) -> None:
    """K9, K4: each operation of the audit has its event type, and times are present only where set."""
    types = {
        "GRANT": ("ACTIVE", "EntitlementGranted"),
        "EXTEND": ("ACTIVE", "EntitlementExtended"),
        "START": ("ACTIVE", "EntitlementStarted"),
        "EXPIRING": ("ACTIVE", "EntitlementExpiring"),
        "EXPIRE": ("EXPIRED", "EntitlementExpired"),
        "REVOKE": ("REVOKED", "EntitlementRevoked"),
    }
    for version, (operation, (status, _)) in enumerate(types.items(), start=1):
        rows.execute(
            """INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit,
                                              detail, version, status, changed_at, purchase_id, starts_at, expires_at)
               VALUES (gen_random_uuid(), 'grantwire', %s, 'APPLIED', 'u', 's', '{"reason": "schedule"}', %s, %s, now(),
                       'p', CASE %s WHEN 1 THEN timestamptz '2026-01-08 07:10Z' END, '2026-02-08 07:10Z')""",
            (operation, version, status, version),
        )
    changes, _ = feed.follow(None, len(types))
    assert [(change["status"], change["event_type"]) for change in changes] == list(types.values())
    assert [change.get("starts_at") for change in changes] == ["2026-01-08T07:10:00.000000Z", *[None] * 5]
    assert {change["expires_at"] for change in changes} == {"2026-02-08T07:10:00.000000Z"}


def test_every_operation_of_the_audit_has_an_event_type(rows: Rows) -> None:
    """K9: an operation without one would make its page fail."""
    (constraint,) = rows.execute(
        "SELECT pg_get_constraintdef(oid) AS text FROM pg_constraint"
        " WHERE conname = 'entitlement_audit_operation' AND conrelid = 'entitlement_audit'::regclass"
    )
    operations = [part for part in constraint["text"].split("'") if part.isupper() and part.isalpha()]
    assert len(operations) == 6
    types = [
        row["type"]
        for operation in operations
        for row in rows.execute("SELECT entitlement_event_type(%s) AS type", (operation,))
    ]
    assert None not in types


def test_pages_continue_and_the_cursor_always_advances(feed: FeedClient, client: Client) -> None:
    """K9: next_after is on every page, also on an empty one, and has_more says whether there is more now."""
    for number in range(5):
        client.grant(f"k{number}", user_id=f"u{number}")
    feed.follow(None, 5)  # all are visible
    pages = []
    after = None
    for _ in range(4):
        page = feed.changes(after, limit="2").json
        pages.append(([change["user_id"] for change in page["changes"]], page["has_more"]))
        assert page["next_after"] != after or not page["changes"]
        after = page["next_after"]
    assert pages == [(["u0", "u1"], True), (["u2", "u3"], True), (["u4"], False), ([], False)]
    assert after is not None
    client.grant("other", user_id="u5")
    client.grant("other2", user_id="u6")
    (five, six), later = feed.follow(after, 2)
    assert (five["user_id"], six["user_id"]) == ("u5", "u6")
    assert later is not None
    assert FeedCursor.decode(later).position > FeedCursor.decode(after).position


@pytest.mark.parametrize("count", [1, 2])
def test_page_that_ends_with_the_last_change_has_no_more(feed: FeedClient, client: Client, count: int) -> None:
    """K9: a full page is not a reason to say that there is more."""
    for number in range(count):
        client.grant(f"k{number}", user_id=f"u{number}")
    feed.follow(None, count)
    page = feed.changes(limit=str(count)).json
    assert (len(page["changes"]), page["has_more"]) == (count, False)


def test_transactions_of_several_changes_are_split_between_pages(feed: FeedClient, database_url: str) -> None:
    """K9: all changes of a transaction have its id; time and id of the change order them."""
    with psycopg.connect(database_url) as writer:
        for number in range(7):
            change(writer, f"u{number}")
    feed.follow(None, 7)
    changes, _ = feed.follow(None, 7, limit=2)
    assert [change["user_id"] for change in changes] == [f"u{number}" for number in range(7)]


def test_running_transaction_holds_back_later_changes(feed: FeedClient, client: Client, database_url: str) -> None:
    """K9: nothing of later transactions appears until it ends; then all appear once, its own change first."""
    client.grant("before", user_id="before")
    (first,), start = feed.follow(None, 1)
    assert first["user_id"] == "before"
    with psycopg.connect(database_url) as holder:
        begin_transaction(holder)
        cursors = [start]
        for number in range(3):
            client.grant(f"k{number}", user_id=f"later{number}")
            page = feed.changes(cursors[-1]).json
            assert page["changes"] == []
            cursors.append(page["next_after"])
        change(holder, "held")
        assert feed.changes(cursors[-1]).json["changes"] == []
    for after in cursors:
        changes, _ = feed.follow(after, 4)
        assert [change["user_id"] for change in changes] == ["held", "later0", "later1", "later2"]


def test_rolled_back_transaction_does_not_appear(feed: FeedClient, client: Client, database_url: str) -> None:
    """K9: its id is passed over."""
    with psycopg.connect(database_url) as holder:
        change(holder, "rolled back")
        client.grant("k", user_id="later")
        holder.rollback()
    changes, _ = feed.follow(None, 1)
    assert [change["user_id"] for change in changes] == ["later"]


def test_versions_of_one_entitlement_can_appear_in_either_order(
    feed: FeedClient, client: Client, database_url: str
) -> None:
    """K9: a transaction that began with something else commits version 2 with a lower id than version 1.

    Ordered by time, version 2 would appear behind a cursor that was handed out.
    """
    start = feed.changes().json["next_after"]
    with psycopg.connect(database_url) as early:
        begin_transaction(early)
        client.grant("k1")
        waiting = feed.changes(start).json
        change(early, "u_123", "REVOKE")
    assert waiting["changes"] == []
    changes, _ = feed.follow(waiting["next_after"], 2)
    assert [(change["version"], change["status"]) for change in changes] == [(2, "REVOKED"), (1, "ACTIVE")]
    assert changes[0]["occurred_at"] > changes[1]["occurred_at"]


def test_reader_beside_writers_sees_each_change_once(database_url: str, rows: Rows) -> None:
    """K9: eight writers, some in transactions that begin before they change anything, and a reader that never stops."""
    writers, each = 8, 15
    stopped = threading.Event()
    seen: list[str] = []
    cursors: list[str] = []

    def read() -> None:
        with FeedClient(database_url) as feed:
            after = None
            while not stopped.is_set():
                page = feed.changes(after, limit="7").json
                seen.extend(change["event_id"] for change in page["changes"])
                after = page["next_after"]
                cursors.append(after)
            rest, _ = feed.follow(after, writers * each - len(seen))
            seen.extend(change["event_id"] for change in rest)

    def write(number: int) -> None:
        with psycopg.connect(database_url) as connection:
            for turn in range(each):
                if number % 2:
                    begin_transaction(connection)
                    time.sleep(0.002 * (number + turn % 3))
                change(connection, f"w{number}", "REVOKE" if turn % 2 else "GRANT")
                connection.commit()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        run_concurrently(writers, write)
    finally:
        stopped.set()
        reader.join(timeout=60)
    applied = {row["operation_id"] for row in rows.execute(_SELECT_APPLIED)}
    assert len(applied) == writers * each
    assert len(seen) == len(set(seen))
    assert set(seen) == applied
    positions = [FeedCursor.decode(cursor).position for cursor in cursors]
    assert positions == sorted(positions)


def test_refused_operation_is_no_change(feed: FeedClient, client: Client, rows: Rows) -> None:
    """K9: whatever its row contains."""
    client.grant("k1", user_id="applied")
    rows.execute(
        """INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail)
           SELECT gen_random_uuid(), 'c', 'GRANT', outcome, 'refused', 's', '{}'
             FROM unnest(ARRAY['ENTITLEMENT_STATE_CONFLICT', 'IDEMPOTENCY_KEY_CONFLICT']) outcome"""
    )
    client.grant("k2", user_id="applied, too")
    changes, _ = feed.follow(None, 2)
    assert [change["user_id"] for change in changes] == ["applied", "applied, too"]


def test_change_that_cannot_be_shown_is_an_error(feed: FeedClient, client: Client, rows: Rows) -> None:
    """K9: a row of an operation without an event type must not disappear from the feed unnoticed."""
    client.grant("k1")
    rows.execute("ALTER TABLE entitlement_audit DROP CONSTRAINT entitlement_audit_operation")
    rows.execute("UPDATE entitlement_audit SET operation = 'TRANSFER'")
    response = feed.changes()
    for _ in range(100):  # until it is visible
        if response.status != 200:
            break
        response = feed.changes()
    assert (response.status, response.code) == (500, "INTERNAL")
    rows.execute("UPDATE entitlement_audit SET operation = 'GRANT'")
    assert len(feed.follow(None, 1)[0]) == 1


def test_lag_is_the_age_of_a_change_that_is_held_back(
    feed: FeedClient, database_url: str, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """K9: an idle transaction without later changes holds nothing back; the metric has the age in seconds."""

    def insert(age: str) -> None:
        rows.execute(
            """INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit,
                                              detail, version, status, changed_at, occurred_at)
               SELECT gen_random_uuid(), 'c', 'GRANT', 'APPLIED', 'u', 's', '{}', 1, 'ACTIVE', time, time
                 FROM CAST(now() - %s::interval AS timestamptz) AS time""",
            (age,),
        )

    insert("1 day")
    feed.follow(None, 1)
    assert report_lag(feed.database) == 0
    with psycopg.connect(database_url) as holder:
        begin_transaction(holder)
        assert report_lag(feed.database) == 0
        insert("1 minute")
        insert("1 hour")
        lag = report_lag(feed.database)
    assert 3600 <= lag < 4000
    feed.follow(None, 3)
    assert report_lag(feed.database) == 0
    assert '"ChangeFeedLag","Unit":"Seconds"' in capsys.readouterr().out.replace(" ", "")


def test_transaction_ids_of_another_cluster_are_not_a_lag(feed: FeedClient, client: Client, rows: Rows) -> None:
    """K9: a restored dump keeps ids that are higher than any id here; a renewal removes them from the feed."""
    client.grant("k1", user_id="foreign")
    rows.execute(
        "UPDATE entitlement_audit SET transaction_id = '9000000000000000000', occurred_at = now() - interval '1 h'"
    )
    client.grant("k2", user_id="own")
    feed.follow(None, 1)
    assert report_lag(feed.database) == 0
    rows.execute("SELECT installation_renew()")
    ids = rows.execute("SELECT user_id, transaction_id IS NULL AS foreign FROM entitlement_audit ORDER BY user_id")
    assert ids.fetchall() == [{"user_id": "foreign", "foreign": True}, {"user_id": "own", "foreign": False}]


@pytest.mark.parametrize("path", [CHANGES, SNAPSHOT])
def test_route_needs_the_scope(feed: FeedClient, path: str) -> None:
    """K9, I7: changes:read, which is no part of entitlements:read."""
    scopes = {**CALLER, "scopes": "entitlements:read entitlements:write ops:read"}
    request = event("GET", path, requestContext={"requestId": "r", "authorizer": scopes})
    response = handler.with_runtime(feed.runtime)(request, None)
    assert (response["statusCode"], "changes:read" in response["body"]) == (403, True)


@pytest.mark.parametrize("path", [CHANGES, SNAPSHOT])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_other_method_is_refused(path: str, method: str) -> None:
    """E5: the Allow header names the allowed one."""
    with FeedClient("postgresql://nobody@127.0.0.1:1/none") as unconnected:
        response = unconnected.send(path, method)
    assert (response.status, response.headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize("path", [CHANGES, SNAPSHOT])
@pytest.mark.parametrize(
    "query",
    [{"after": "x"}, {"after": ""}, {"limit": "0"}, {"limit": "1001"}, {"limit": "\u0661"}, {"wait": "21"}, {"x": "1"}],
)
def test_bad_input_is_refused_without_a_database(path: str, query: dict[str, str]) -> None:
    """E5: 400, never a 5xx."""
    with FeedClient("postgresql://nobody@127.0.0.1:1/none") as unconnected:
        assert unconnected.send(path, **query).code == "BAD_REQUEST"


def test_database_outage_is_503_and_function_recovers(server: PostgresServer) -> None:
    """E5: with Retry-After while PostgreSQL is stopped; the same runtime responds normally afterwards."""
    with FeedClient(server.url()) as feed:
        assert feed.changes().status == 200
        server.stop()
        try:
            responses = [feed.changes(wait="5"), feed.snapshot()]
        finally:
            server.start()
        assert [(response.status, response.code) for response in responses] == [(503, "UNAVAILABLE")] * 2
        assert (feed.changes().status, feed.snapshot().status) == (200, 200)


def test_event_file_reads_the_feed(client: Client, database_url: str) -> None:
    """S2: `sam local invoke` shows the changes, with the runtime that the environment describes."""
    client.grant("k")
    with Functions({**PLAINTEXT, "DATABASE_URL": database_url}) as functions:
        request = json.loads((ROOT / "infra/events/list_changes.json").read_text())
        response = functions.invoke("list_changes", request)
    assert response["statusCode"] == 200
    assert json.loads(response["body"])["next_after"]
