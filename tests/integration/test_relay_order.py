"""O2, O8: several relays publish each event once, and each aggregate's events in version order."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.outbox.store import promote_stuck
from tests.support.client import Client
from tests.support.concurrency import run_concurrently
from tests.support.waiting import until_idle
from tests.support.workers.relay_support import budget, drain, enqueue_many, read_stream, relay, versions_by_aggregate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.integration.conftest import Rows


def _run_relays(relays: int, environ: Mapping[str, str]) -> int:
    """Run several relays concurrently, with separate connections, until idle; return how many events they published."""
    results = run_concurrently(relays, lambda _: drain(environ))
    assert {result["leases_lost"] + result["failed"] + result["retried"] for result in results} == {0}
    # A relay may have become idle while another still had claimed the head of an aggregate.
    return sum(result["published"] for result in results) + drain(environ)["published"]


@pytest.mark.parametrize("relays", [2, 4])
def test_relays_share_many_aggregates(relays: int, environ: dict[str, str], rows: Rows) -> None:
    """O2, O8: 2,000 events of 100 aggregates are in the stream once and in order."""
    enqueue_many(rows, aggregates=100, each=20)
    assert _run_relays(relays, environ | {"ENTITLEMENT_OUTBOX_BATCH_SIZE": "60"}) == 2000
    messages = read_stream(environ)
    assert len(messages) == 2000
    assert versions_by_aggregate(messages) == {f"u{number}/item1": list(range(1, 21)) for number in range(100)}
    assert rows.execute("SELECT DISTINCT status, attempt_count FROM outbox_events").fetchall() == [
        {"status": "PUBLISHED", "attempt_count": 0}
    ]
    # T2: each event has the number of its own message.
    recorded = rows.execute("SELECT event_id::text AS id, stream_sequence AS number FROM outbox_events").fetchall()
    numbers = {message.headers["Nats-Msg-Id"]: message.sequence for message in messages}
    assert {row["id"]: row["number"] for row in recorded} == numbers


@pytest.mark.parametrize("relays", [2, 4])
def test_relays_share_one_hot_aggregate(relays: int, environ: dict[str, str], rows: Rows) -> None:
    """O8: an event is sent after its predecessor was acknowledged, even if another relay sent that."""
    enqueue_many(rows, aggregates=1, each=500)
    assert _run_relays(relays, environ | {"ENTITLEMENT_OUTBOX_BATCH_SIZE": "7"}) == 500
    messages = read_stream(environ)
    assert len(messages) == 500
    assert versions_by_aggregate(messages) == {"u0/item1": list(range(1, 501))}


def test_relays_publish_while_entitlements_change(environ: dict[str, str], database_url: str, rows: Rows) -> None:
    """O8: with two relays and concurrent grants and revokes, no event is lost, duplicated or out of order."""
    done = threading.Event()

    def send_changes(number: int) -> None:
        with Client(database_url) as client:
            for turn in range(50):
                change_entitlement = client.grant if turn % 2 == 0 else client.revoke
                assert change_entitlement(f"{number}-{turn}", user_id=f"u{number}").status == 200

    def run_relay() -> int:
        published = 0
        with relay(environ | {"ENTITLEMENT_OUTBOX_BATCH_SIZE": "20"}) as runtime:
            while not done.is_set():
                published += runtime.run(budget(0.4))["published"]
        return published

    relays = [threading.Thread(target=run_relay) for _ in range(2)]
    for thread in relays:
        thread.start()
    run_concurrently(4, send_changes)
    done.set()
    for thread in relays:
        thread.join()
    drain(environ)
    messages = read_stream(environ)
    assert len(messages) == 200
    assert versions_by_aggregate(messages) == {f"u{number}/item1": list(range(1, 51)) for number in range(4)}
    assert rows.execute("SELECT DISTINCT status FROM outbox_events").fetchall() == [{"status": "PUBLISHED"}]


def test_no_event_stays_blocked_between_enqueue_and_complete(environ: dict[str, str], database_url: str) -> None:
    """O8: an event becomes ready even if its predecessor is completed during the enqueue."""
    done = threading.Event()

    def send_changes(number: int) -> None:
        with Client(database_url) as client:
            for turn in range(100):
                change_entitlement = client.grant if turn % 2 == 0 else client.revoke
                change_entitlement(f"{number}-{turn}", user_id=f"u{number % 2}")

    def run_relay() -> None:
        with relay(environ | {"ENTITLEMENT_OUTBOX_BATCH_SIZE": "3"}) as runtime:
            while not done.is_set():
                runtime.run(until_idle())

    relays = [threading.Thread(target=run_relay) for _ in range(2)]
    for thread in relays:
        thread.start()
    run_concurrently(4, send_changes)
    done.set()
    for thread in relays:
        thread.join()
    drain(environ)
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert promote_stuck(connection) == 0
        assert connection.execute("SELECT count(*) FROM outbox_events WHERE status <> 'PUBLISHED'").fetchone() == (0,)
