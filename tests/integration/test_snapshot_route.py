"""K9: the snapshot has all entitlements, and the feed continues from it without a gap."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.concurrency import run_concurrently
from tests.support.feed import FeedClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows
    from tests.support.client import Client

_CHANGE = """
SELECT outcome
  FROM change_entitlement('route', %(key)s, 'v1:0', '1 day', 2000, '0', '0', jsonb_populate_record(
         NULL::entitlement_change, jsonb_build_object(
         'operation_id', gen_random_uuid(), 'operation', %(operation)s::text, 'user_id', %(user_id)s::text,
         'stock_keeping_unit', %(sku)s::text, 'reason', 'purchase', 'purchase_id', 'p_1', 'caller', 'tests')))
"""


@pytest.fixture
def feed(database_url: str) -> Iterator[FeedClient]:
    """A consumer of the feed."""
    with FeedClient(database_url) as feed:
        yield feed


def change(connection: psycopg.Connection[Any], operation: str, user_id: str, sku: str = "item1") -> None:
    """Change an entitlement in the transaction of the connection."""
    connection.execute(_CHANGE, {"key": str(uuid.uuid4()), "operation": operation, "user_id": user_id, "sku": sku})


def test_entitlement_has_the_fields_of_the_document(feed: FeedClient, client: Client) -> None:
    """K9: exactly these fields in this order; a page without a successor has no next_after."""
    granted = client.grant("k").json
    page = feed.snapshot().json
    assert list(page) == ["entitlements", "changes_after"]
    assert [list(item.items()) for item in page["entitlements"]] == [
        [
            ("user_id", "u_123"),
            ("stock_keeping_unit", "item1"),
            ("status", "ACTIVE"),
            ("version", 1),
            ("updated_at", granted["updated_at"]),
        ]
    ]


def test_empty_database_has_an_empty_snapshot(feed: FeedClient, client: Client) -> None:
    """K9: a consumer begins there, too."""
    entitlements, after = feed.read_snapshot()
    assert entitlements == []
    client.grant("k")
    changes, _ = feed.follow(after, 1)
    assert [change["version"] for change in changes] == [1]


def test_status_is_computed_at_the_time_of_the_page(database_url: str, rows: Rows) -> None:
    """K9, K3, K5: an end that no worker has recorded yet counts, after the grace."""
    rows.execute("""
        INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at, starts_at, expires_at)
        SELECT 'u', name, status, 1, now(), now() + starts_in::interval, now() + ends_in::interval
          FROM (VALUES ('active', 'ACTIVE', '-2 h', '2 h'), ('ended', 'ACTIVE', '-2 h', '-1 h'),
                       ('just ended', 'ACTIVE', '-2 h', '-1 min'), ('later', 'ACTIVE', '1 h', '2 h'),
                       ('recorded', 'EXPIRED', '-2 h', '-1 h'), ('revoked', 'REVOKED', '-2 h', NULL))
               AS e (name, status, starts_in, ends_in)""")
    for grace, just_ended in (("0s", "EXPIRED"), ("30m", "ACTIVE")):
        with FeedClient(database_url, ENTITLEMENT_GRACE=grace) as feed:
            entitlements, _ = feed.read_snapshot()
        assert {item["stock_keeping_unit"]: item["status"] for item in entitlements} == {
            "active": "ACTIVE",
            "ended": "EXPIRED",
            "just ended": just_ended,
            "later": "SCHEDULED",
            "recorded": "EXPIRED",
            "revoked": "REVOKED",
        }
        times = {item["stock_keeping_unit"]: ("starts_at" in item, "expires_at" in item) for item in entitlements}
        assert (times["active"], times["revoked"]) == ((True, True), (True, False))


def test_pages_are_in_the_order_of_the_primary_key(feed: FeedClient, database_url: str) -> None:
    """K9: by code point, whatever the names contain, and each entitlement once."""
    names = [("a", "z"), ("a/b", "x"), ("ab", "é"), ("B", "1"), ('"', "\\"), ("日本", "🎁"), ("a", "a b")]
    with psycopg.connect(database_url) as connection:
        for user_id, sku in names:
            change(connection, "GRANT", user_id, sku)
    for limit in (1, 2, 3, 7, 8):
        entitlements, _ = feed.read_snapshot(limit=limit)
        assert [(item["user_id"], item["stock_keeping_unit"]) for item in entitlements] == sorted(names)
    assert "next_after" in feed.snapshot(limit="6").json
    assert "next_after" not in feed.snapshot(limit="7").json


def test_change_of_a_running_transaction_follows_in_the_feed(
    feed: FeedClient, client: Client, database_url: str
) -> None:
    """K9: the cursor is that of the first page: what no page could see is after it."""
    client.grant("k0", user_id="a")
    with psycopg.connect(database_url) as running:
        change(running, "GRANT", "held")
        client.grant("k1", user_id="b")
        first = feed.snapshot(limit="1").json
        client.grant("k2", user_id="A, on a page that was read")
    client.revoke("k3", user_id="b")
    rest = feed.snapshot(first["next_after"], limit="1000").json
    assert rest["changes_after"] == first["changes_after"]
    assert [(item["user_id"], item["version"]) for item in first["entitlements"]] == [("a", 1)]
    assert [(item["user_id"], item["version"]) for item in rest["entitlements"]] == [("b", 2), ("held", 1)]
    changes, _ = feed.follow(first["changes_after"], 4)
    assert [(item["user_id"], item["version"]) for item in changes] == [
        ("held", 1),
        ("b", 1),
        ("A, on a page that was read", 1),
        ("b", 2),
    ]


def test_feed_and_snapshot_agree_before_the_start(feed: FeedClient, client: Client) -> None:
    """K3, K9: an entitlement for later is SCHEDULED in both, also after an extension, so that a copy is the same."""
    times = {"starts_at": "2998-01-01T00:00:00Z", "expires_at": "2999-01-01T00:00:00Z"}
    granted = client.grant("k1", user_id="a", **times).json
    client.extend("k2", None, user_id="a")
    client.grant("k3", user_id="b", **times)
    client.revoke("k4", user_id="b")
    client.grant("k5", user_id="c", starts_at="2001-01-01T00:00:00Z")
    changes, _ = feed.follow(None, 5)
    listed = [(item["user_id"], item["version"], item["status"]) for item in changes]
    assert granted["status"] == "SCHEDULED"
    assert listed == [
        ("a", 1, "SCHEDULED"),
        ("a", 2, "SCHEDULED"),
        ("b", 1, "SCHEDULED"),
        ("b", 2, "REVOKED"),
        ("c", 1, "ACTIVE"),
    ]
    entitlements, _ = feed.read_snapshot()
    assert [(item["user_id"], item["version"], item["status"]) for item in entitlements] == [listed[1], *listed[3:]]


def test_snapshot_and_feed_give_the_exact_table(database_url: str, rows: Rows) -> None:
    """K9: a consumer that begins while eight writers work, and decides by version, has the table in the end."""
    writers, each, users = 8, 20, 12
    began = threading.Event()
    finished = threading.Event()
    state: dict[tuple[str, str], tuple[int, str]] = {}

    def apply(items: list[dict[str, Any]]) -> None:
        for item in items:
            key = (item["user_id"], item["stock_keeping_unit"])
            if item["version"] > state.get(key, (0, ""))[0]:
                state[key] = (item["version"], item["status"])

    def consume() -> None:
        with FeedClient(database_url) as feed:
            began.wait(timeout=30)
            entitlements, after = feed.read_snapshot(limit=2)
            apply(entitlements)
            cursor: str | None = after
            while not finished.is_set():
                changes, cursor = feed.follow(cursor, 0, limit=5)
                apply(changes)
            # One more change after all others: everything before it has been read then.
            rows.execute(_CHANGE, {"key": "last", "operation": "GRANT", "user_id": "last", "sku": "item1"})
            while ("last", "item1") not in state:
                changes, cursor = feed.follow(cursor, 1)
                apply(changes)

    def write(number: int) -> None:
        with psycopg.connect(database_url) as connection:
            for turn in range(each):
                user_id = f"u{(number * 7 + turn) % users}"
                change(connection, "REVOKE" if turn % 2 else "GRANT", user_id)
                connection.commit()
                if turn == each // 3:
                    began.set()

    consumer = threading.Thread(target=consume)
    consumer.start()
    try:
        run_concurrently(writers, write)
    finally:
        began.set()
        finished.set()
        consumer.join(timeout=60)
    table = rows.execute("SELECT user_id, stock_keeping_unit, version, status FROM entitlements").fetchall()
    assert max(row["version"] for row in table) > 3
    assert state == {(row["user_id"], row["stock_keeping_unit"]): (row["version"], row["status"]) for row in table}
