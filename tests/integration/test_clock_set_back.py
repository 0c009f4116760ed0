"""W6: a clock that is set back delays nothing that was due and undoes nothing that was recorded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.notifications import store as notifications
from grantwire.notifications.dead_letters import redrive as redrive_notifications
from grantwire.operations import command_store
from grantwire.operations.command_store import BatchOutcome
from grantwire.outbox import store
from grantwire.outbox.confirmation.store import PutBack, put_back
from grantwire.outbox.store import redrive
from grantwire.read_model.summary import Summaries
from grantwire.validation import PageRequest
from grantwire.workers.leases import Completion, Failure, RetryDecision
from tests.integration.test_delivery_claims import NOON, FakeSender, add, deliver
from tests.support.checks import CheckClient, write_audit, write_entitlement
from tests.support.client import Client
from tests.support.clock import Clock
from tests.support.feed import FeedClient
from tests.support.read_model import copy_to_read_model
from tests.support.times import history, in_hours, run_expiry
from tests.support.workers.relay_support import enqueue_many

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire.database import Connection
    from tests.integration.conftest import Rows

LEASE = timedelta(seconds=30)


@pytest.fixture
def clock(rows: Rows) -> Clock:
    """The clock of the database, for connections that are opened later."""
    return Clock(rows)


@pytest.fixture
def tx(database_url: str) -> Iterator[Connection]:
    """The connection of a relay."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def test_recorded_start_stays_recorded(database_url: str, rows: Rows, clock: Clock) -> None:
    """W6, K3: every read says ACTIVE, as the event of the start did, although its time is in the future again."""
    with Client(database_url) as client:
        client.grant("k1", starts_at=in_hours(1))
        clock.pass_time(2)
        assert run_expiry(database_url)["started"] == 1
        clock.pass_time(-1.5)
        (listed,) = client.list_entitlements().json["entitlements"]
        copy_to_read_model(rows)
        summary = Summaries(client.database, "0").get(PageRequest("u_123", 10, ""))
    with CheckClient(database_url) as reader, FeedClient(database_url) as feed:
        checked = reader.check().json
        (many,) = reader.check_many(("u_123", "item1")).json["results"]
        past = reader.check(at=checked["checked_at"]).json
        (newest, _) = reader.history().json["history"]
        (copied,) = feed.snapshot().json["entitlements"]
    assert checked["allowed"]
    for read in (listed, checked, many, past, newest, copied):
        assert (read["version"], read["status"]) == (2, "ACTIVE")
    assert '"active":1' in summary


def test_history_is_in_the_order_of_versions(database_url: str, rows: Rows, clock: Clock) -> None:
    """W6, E1, K8: also page by page, and with times that grow."""
    with Client(database_url) as client, CheckClient(database_url) as reader:
        client.grant("k1")
        for key in ("k2", "k3"):
            clock.pass_time(-1)
            (client.revoke if key == "k2" else client.grant)(key)
        # The default of this column keeps the real clock.
        rows.execute("UPDATE entitlement_audit SET occurred_at = occurred_at - version * interval '1 hour'")
        full = reader.history().json["history"]
        assert [change["version"] for change in full] == [3, 2, 1]
        times = [change["occurred_at"] for change in full]
        assert times == sorted(times, reverse=True)
        assert len(set(times)) == 3
        page = reader.history(limit="1").json
        pages = [page["history"]]
        while "next_before" in page:
            page = reader.history(limit="1", before=page["next_before"]).json
            pages.append(page["history"])
        assert pages == [[change] for change in full]


def test_check_as_of_a_moment_ago_agrees_with_the_check(database_url: str, clock: Clock) -> None:
    """W6, K8: after a change that was recorded before the clock was set back, and after one that followed."""
    with Client(database_url) as client, CheckClient(database_url) as reader:
        client.grant("k1")
        clock.pass_time(-1)
        for status in ("ACTIVE", "REVOKED"):
            if status == "REVOKED":
                client.revoke("k2")
            checked = reader.check().json
            past = reader.check(at=checked["checked_at"]).json
            assert (past["status"], past["version"]) == (checked["status"], checked["version"])
            assert past["status"] == status


@pytest.mark.parametrize(
    ("seconds_ago", "version"), [(0, 3), (10, 3), (11, 2), (100, 2), (101, 1), (1000, 1), (1001, None)]
)
def test_change_ahead_of_the_clock_counts_from_as_long_before_it(
    rows: Rows, seconds_ago: int, version: int | None
) -> None:
    """W6, K8: the last one is 10 s ahead; the others count from their own times, in the order of their versions."""
    (row,) = rows.execute("SELECT now() AS now").fetchall()
    now: datetime = row["now"]
    for number, changed, occurred in ((1, -1000, -1000), (2, -100, -2000), (3, 10, -3000)):
        write_audit(
            rows,
            version=number,
            changed_at=now + timedelta(seconds=changed),
            occurred_at=now + timedelta(seconds=occurred),
        )
    write_entitlement(rows, version=3, updated_at=now + timedelta(seconds=10))
    (found,) = rows.execute(
        "SELECT (entitlement).version, refusal FROM entitlement_at('u_123', 'item1', %s, %s)",
        (now - timedelta(seconds=seconds_ago), now),
    ).fetchall()
    assert found == {"version": version, "refusal": None}


def test_first_attempt_of_an_event_is_due(tx: Connection) -> None:
    """W6, O2: a new event, the run behind it, and a redriven event are claimed an hour before they were created."""
    enqueue_many(tx, aggregates=1, each=3)
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    events = store.claim(tx, "first", limit=2, lease=LEASE, now=an_hour_ago)
    assert [event.aggregate_version for event in events] == [1, 2]
    store.release(tx, "first", [events[1].event_id])
    store.fail(tx, "first", [Failure(events[0].event_id, RetryDecision(10, None), "no")])
    (head,) = tx.execute("SELECT event_id FROM outbox_events WHERE status = 'FAILED'").fetchall()
    redrive(tx, [head[0]])
    events = store.claim(tx, "second", limit=10, lease=LEASE, now=an_hour_ago)
    assert [event.aggregate_version for event in events] == [1, 2, 3]


def test_first_attempt_of_an_event_that_was_put_back_is_due(tx: Connection) -> None:
    """W6, W1: it waits only if it is lost again."""
    enqueue_many(tx, aggregates=1, each=1)
    (event,) = store.claim(tx, "first", limit=1, lease=LEASE)
    store.complete(tx, "first", [Completion(event.event_id, 1)])
    now = datetime.now(UTC)
    lost = [(event.event_id, 1)]
    found = put_back(tx, lost, cause="LOST", oldest=now - timedelta(days=1), backoff=timedelta(minutes=1), now=now)
    assert found == PutBack(1, 0)
    (again,) = store.claim(tx, "second", limit=1, lease=LEASE, now=now - timedelta(hours=1))
    assert (again.event_id, again.republication) == (event.event_id, 1)


def test_first_run_of_a_command_is_due(tx: Connection) -> None:
    """W6, T1: a retry waits for its time, and updated_at never decreases."""
    tx.execute(
        "INSERT INTO operator_commands (command_id, kind, arguments, actor, reason, source)"
        " VALUES (gen_random_uuid(), 'read_model.verify', '{}', 'a', 'r', 's')"
    )
    query = "SELECT created_at, updated_at, started_at FROM operator_commands"
    now = datetime.now(UTC)
    an_hour_ago = now - timedelta(hours=1)
    (command,) = command_store.claim(tx, "first", limit=1, lease=LEASE, now=an_hour_ago)
    created_at, updated_at, started_at = tx.execute(query).fetchone() or ()
    assert (updated_at, started_at) == (created_at, an_hour_ago)
    decision = RetryDecision(1, timedelta(minutes=1))
    command_store.fail(tx, "first", [Failure(command.command_id, decision, "no")], now=an_hour_ago)
    assert command_store.claim(tx, "second", limit=1, lease=LEASE, now=an_hour_ago) == []
    assert len(command_store.claim(tx, "second", limit=1, lease=LEASE, now=now)) == 1
    outcome = BatchOutcome("x")
    command_store.end_batch(tx, "second", command.command_id, outcome, now=an_hour_ago)
    command_store.complete(tx, "second", [Completion(command.command_id)], now=an_hour_ago)
    assert tx.execute("SELECT updated_at FROM operator_commands").fetchone() == (max(updated_at, now),)


def test_retry_of_an_event_waits_for_its_time(tx: Connection) -> None:
    """O4, W6: only a first attempt is due whatever the clock says."""
    enqueue_many(tx, aggregates=1, each=1)
    (event,) = store.claim(tx, "first", limit=1, lease=LEASE)
    store.fail(tx, "first", [Failure(event.event_id, RetryDecision(1, timedelta(minutes=1)), "no")])
    assert store.claim(tx, "second", limit=1, lease=LEASE) == []
    assert store.claim(tx, "second", limit=1, lease=LEASE, now=datetime.now(UTC) + timedelta(minutes=2)) != []


def test_first_attempt_of_a_notification_is_due(database_url: str, rows: Rows) -> None:
    """W6, D1, Q2: also after a redrive. A retry waits for its time, also if it failed without an attempt."""
    first, redriven, *waiting = add(rows, 4)
    with psycopg.connect(database_url, autocommit=True) as connection:
        for each, decision in (
            (redriven, RetryDecision(10, None)),
            (waiting[0], RetryDecision(1, timedelta(0))),
            (waiting[1], RetryDecision(0, timedelta(0))),
        ):
            connection.execute(
                "UPDATE notifications SET status = 'PROCESSING', locked_by = 't', locked_at = now(),"
                " lease_until = now() WHERE notification_id = %s",
                (each,),
            )
            assert notifications.fail(connection, "t", [Failure(each, decision, "no")], now=NOON) == 1
        assert redrive_notifications(connection, [redriven], NOON + timedelta(minutes=1)) == [redriven]
    sender = FakeSender()
    assert deliver(database_url, sender, now=NOON - timedelta(hours=1))["sent"] == 2
    assert set(sender.sent_ids) == {first, redriven}
    assert deliver(database_url, sender)["sent"] == 2


@pytest.mark.parametrize("change", ["worker", "revoke", "extend"])
def test_updated_at_never_decreases(database_url: str, rows: Rows, change: str) -> None:
    """W6, E1: neither by the worker nor by a change, if the last change is ahead of the clock."""
    with Client(database_url) as client:
        client.grant("k1", starts_at=in_hours(1), expires_at=in_hours(3))
        rows.execute("""
            UPDATE entitlements SET updated_at = updated_at + interval '1 hour',
                                    starts_at = starts_at - interval '2 hours'""")
        if change == "worker":
            run_expiry(database_url)
        elif change == "revoke":
            client.revoke("k2")
        else:
            client.extend("k2", in_hours(5))
    changes = rows.execute("SELECT changed_at FROM entitlement_audit WHERE version > 1 ORDER BY version").fetchall()
    assert len(changes) == (1 if change == "worker" else 2)
    assert history(rows)[1] == ("START", 2, "ACTIVE")
    (first,) = rows.execute("SELECT changed_at + interval '1 hour' AS at FROM entitlement_audit WHERE version = 1")
    times = [first["at"], *(row["changed_at"] for row in changes)]
    assert times == sorted(set(times))
