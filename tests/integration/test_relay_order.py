"""O2, O8: several relays over one outbox publish each event once, in the order of its aggregate's versions."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.outbox.store import promote_stuck
from tests.support.client import Client
from tests.support.concurrency import at_once
from tests.support.workers.relay_support import budget, drain, enqueue_many, relay, stream, versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.integration.conftest import Rows


def _together(relays: int, environ: Mapping[str, str]) -> int:
    """So many relays at once, each with its own connections, until nothing is left; how many events they published."""
    results = at_once(relays, lambda _: drain(environ))
    assert {result["leases_lost"] + result["failed"] + result["retried"] for result in results} == {0}
    # One that found nothing may have ended while another still held an aggregate's run.
    return sum(result["published"] for result in results) + drain(environ)["published"]


@pytest.mark.parametrize("relays", [2, 4])
def test_relays_share_many_aggregates(relays: int, environ: dict[str, str], rows: Rows) -> None:
    """O2, O8: 2,000 events of 100 aggregates, each in the stream once and in order."""
    enqueue_many(rows, aggregates=100, each=20)
    assert _together(relays, environ | {"ENTITLEMENT_OUTBOX_BATCH_SIZE": "60"}) == 2000
    messages = stream(environ)
    assert len(messages) == 2000
    assert versions(messages) == {f"u{number}/item1": list(range(1, 21)) for number in range(100)}
    assert rows.execute("SELECT DISTINCT status, attempt_count FROM outbox_events").fetchall() == [
        {"status": "PUBLISHED", "attempt_count": 0}
    ]


@pytest.mark.parametrize("relays", [2, 4])
def test_relays_share_one_hot_aggregate(relays: int, environ: dict[str, str], rows: Rows) -> None:
    """O8: the next event of an aggregate is sent when the one before it is acknowledged, whoever sent that."""
    enqueue_many(rows, aggregates=1, each=500)
    assert _together(relays, environ | {"ENTITLEMENT_OUTBOX_BATCH_SIZE": "7"}) == 500
    messages = stream(environ)
    assert len(messages) == 500
    assert versions(messages) == {"u0/item1": list(range(1, 501))}


def test_relays_keep_up_with_live_enqueuers(environ: dict[str, str], database_url: str, rows: Rows) -> None:
    """O8: rights change while two relays work; nothing is lost, doubled or out of order."""
    done = threading.Event()

    def change(number: int) -> None:
        with Client(database_url) as client:
            for turn in range(50):
                path = client.grant if turn % 2 == 0 else client.revoke
                assert path(f"{number}-{turn}", user_id=f"u{number}").status == 200

    def work() -> int:
        published = 0
        with relay(environ | {"ENTITLEMENT_OUTBOX_BATCH_SIZE": "20"}) as runtime:
            while not done.is_set():
                published += runtime.run(budget(0.4))["published"]
        return published

    relays = [threading.Thread(target=work) for _ in range(2)]
    for thread in relays:
        thread.start()
    at_once(4, change)
    done.set()
    for thread in relays:
        thread.join()
    drain(environ)
    messages = stream(environ)
    assert len(messages) == 200
    assert versions(messages) == {f"u{number}/item1": list(range(1, 51)) for number in range(4)}
    assert rows.execute("SELECT DISTINCT status FROM outbox_events").fetchall() == [{"status": "PUBLISHED"}]


def test_no_event_is_forgotten_between_enqueue_and_finalise(environ: dict[str, str], database_url: str) -> None:
    """O8: an enqueue that sees its predecessor open does not miss the relay that closes it at that moment."""
    done = threading.Event()

    def enqueuer(number: int) -> None:
        with Client(database_url) as client:
            for turn in range(100):
                path = client.grant if turn % 2 == 0 else client.revoke
                path(f"{number}-{turn}", user_id=f"u{number % 2}")

    def closer() -> None:
        with relay(environ | {"ENTITLEMENT_OUTBOX_BATCH_SIZE": "3"}) as runtime:
            while not done.is_set():
                runtime.run(budget(5, until_idle=True))

    closers = [threading.Thread(target=closer) for _ in range(2)]
    for thread in closers:
        thread.start()
    at_once(4, enqueuer)
    done.set()
    for thread in closers:
        thread.join()
    drain(environ)
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert promote_stuck(connection) == 0
        assert connection.execute("SELECT count(*) FROM outbox_events WHERE status <> 'PUBLISHED'").fetchone() == (0,)
