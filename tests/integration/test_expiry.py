"""K4: starts, notices and ends as events, each recorded once and in order, by workers and by changes."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from grantwire.errors import SystemFaultError
from tests.support.client import Client
from tests.support.concurrency import run_concurrently
from tests.support.times import events, expiry_worker, history, in_hours, pass_time, run_expiry
from tests.support.worker_runner import run_worker

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

NOTHING = {"started": 0, "expiring": 0, "expired": 0, "failed": 0}


@pytest.mark.parametrize(
    ("status", "start", "end", "state"),
    [
        (None, None, None, "NONE"),
        ("ACTIVE", None, None, "ACTIVE"),
        ("ACTIVE", "1 microsecond", None, "SCHEDULED"),
        ("ACTIVE", "0", None, "ACTIVE"),
        ("ACTIVE", None, "-1 hour +1 microsecond", "ACTIVE"),
        ("ACTIVE", None, "-1 hour", "EXPIRED"),
        ("ACTIVE", "1 microsecond", "1 hour", "SCHEDULED"),
        ("REVOKED", "1 hour", "2 hours", "REVOKED"),
        ("EXPIRED", None, "-2 hours", "EXPIRED"),
    ],
)
def test_state_changes_exactly_at_start_and_end(
    rows: Rows, status: str | None, start: str | None, end: str | None, state: str
) -> None:
    """K3, K5: with a grace of one hour; the moment of the start is ACTIVE, the moment of the end is EXPIRED."""
    row = rows.execute(
        "SELECT entitlement_state(%s, now() + %s::interval, now() + %s::interval, '1 hour', now()) AS state",
        (status, start, end),
    ).fetchone()
    assert row == {"state": state}


def test_worker_records_start_notice_and_end_once_and_in_order(client: Client, rows: Rows, database_url: str) -> None:
    """K4, E1: each has the next version, an event, an audit row, and a time that is not earlier than the last one."""
    client.grant("k1", starts_at=in_hours(1), expires_at=in_hours(200))
    assert run_expiry(database_url) == NOTHING
    pass_time(rows, 2)
    assert run_expiry(database_url) == NOTHING | {"started": 1}
    pass_time(rows, 127)
    assert run_expiry(database_url) == NOTHING | {"expiring": 1}
    assert run_expiry(database_url) == NOTHING
    pass_time(rows, 72)
    assert run_expiry(database_url) == NOTHING | {"expired": 1}
    assert run_expiry(database_url) == NOTHING
    assert history(rows) == [
        ("GRANT", 1, "ACTIVE"),
        ("START", 2, "ACTIVE"),
        ("EXPIRING", 3, "ACTIVE"),
        ("EXPIRE", 4, "EXPIRED"),
    ]
    assert events(rows) == [
        ("EntitlementGranted", 1),
        ("EntitlementStarted", 2),
        ("EntitlementExpiring", 3),
        ("EntitlementExpired", 4),
    ]
    (entitlement,) = rows.execute("SELECT * FROM entitlements").fetchall()
    assert (entitlement["status"], entitlement["version"]) == ("EXPIRED", 4)
    payloads = [row["payload"] for row in rows.execute("SELECT payload FROM outbox_events ORDER BY aggregate_version")]
    assert {(payload["source"], payload["source_id"]) for payload in payloads[1:]} == {("schedule", "p_456")}
    assert all(payload["expires_at"] for payload in payloads)


def test_worker_that_was_down_records_start_and_end_together(client: Client, rows: Rows, database_url: str) -> None:
    """K4: the notice is left out, because the end is already there."""
    client.grant("k1", starts_at=in_hours(1), expires_at=in_hours(200))
    pass_time(rows, 300)
    assert run_expiry(database_url) == NOTHING | {"started": 1, "expired": 1}
    assert [operation for operation, _, _ in history(rows)] == ["GRANT", "START", "EXPIRE"]


def test_change_records_the_same_events_as_the_worker(client: Client, rows: Rows, database_url: str) -> None:
    """K4: two equal entitlements, one recorded by the worker and one by the change that meets it."""
    for user in ("worker", "change"):
        client.grant(f"{user}-1", user_id=user, starts_at=in_hours(1), expires_at=in_hours(200))
    pass_time(rows, 130)
    client.revoke("change-2", user_id="change")
    run_expiry(database_url)
    client.revoke("worker-2", user_id="worker")
    listed: dict[str, list[str]] = {}
    for row in rows.execute("SELECT user_id, operation FROM entitlement_audit ORDER BY version"):
        listed.setdefault(row["user_id"], []).append(row["operation"])
    assert listed["change"] == listed["worker"] == ["GRANT", "START", "EXPIRING", "REVOKE"]


def test_notice_is_once_for_each_end(client: Client, rows: Rows, database_url: str) -> None:
    """K4: an extension gets a notice of its own; an end that is nearer than the notice gets none.

    Neither does one whose notice would precede the start, after a grant or an extension.
    """
    client.grant("k1", expires_at=in_hours(100))
    pass_time(rows, 50)
    assert run_expiry(database_url) == NOTHING | {"expiring": 1}
    client.extend("k2", in_hours(100))
    pass_time(rows, 50)
    assert run_expiry(database_url) == NOTHING | {"expiring": 1}
    client.extend("k3", in_hours(71))
    client.grant("k4", user_id="short", expires_at=in_hours(71))
    client.grant("k5", user_id="late", starts_at=in_hours(50), expires_at=in_hours(100))
    client.extend("k6", in_hours(101), user_id="late")
    pass_time(rows, 49)
    assert run_expiry(database_url) == NOTHING
    client.extend("k7", in_hours(100), user_id="late")
    pass_time(rows, 30)
    assert run_expiry(database_url) == NOTHING | {"started": 1, "expiring": 1, "expired": 2}


def test_notice_can_be_disabled(database_url: str, rows: Rows) -> None:
    """K4: with ENTITLEMENT_EXPIRY_NOTICE=0s; a notice that was already planned is left out, too."""
    with Client(database_url) as client:
        client.grant("k1", expires_at=in_hours(100))
    pass_time(rows, 50)
    assert run_expiry(database_url, ENTITLEMENT_EXPIRY_NOTICE="0s") == NOTHING
    with Client(database_url, ENTITLEMENT_EXPIRY_NOTICE="0s") as client:
        client.grant("k2", user_id="u2", expires_at=in_hours(100))
    pass_time(rows, 49)
    assert run_expiry(database_url) == NOTHING | {"expiring": 1}


def test_disabled_notice_is_not_recorded_during_the_grace(database_url: str, rows: Rows) -> None:
    """K4, K5: neither by the worker nor by a change that meets the entitlement after its expires_at."""
    with Client(database_url) as client:
        client.grant("k1", expires_at=in_hours(100))
    pass_time(rows, 101)
    settings = {"ENTITLEMENT_EXPIRY_NOTICE": "0s", "ENTITLEMENT_GRACE": "3h"}
    assert run_expiry(database_url, **settings) == NOTHING
    with Client(database_url, **settings) as client:
        assert client.revoke("k2").json["version"] == 2


def test_grace_delays_the_recorded_end(client: Client, rows: Rows, database_url: str) -> None:
    """K5: the event of the end comes at expires_at plus grace, not earlier."""
    client.grant("k1", expires_at=in_hours(1))
    pass_time(rows, 2)
    assert run_expiry(database_url, ENTITLEMENT_GRACE="3h") == NOTHING
    pass_time(rows, 2)
    assert run_expiry(database_url, ENTITLEMENT_GRACE="3h") == NOTHING | {"expired": 1}


def test_batches_are_bounded(client: Client, rows: Rows, database_url: str) -> None:
    """K4, R4: one transaction records at most the batch size of each kind; the run continues until all are done."""
    for number in range(25):
        client.grant(f"k{number}", user_id=f"u{number}", expires_at=in_hours(1))
    pass_time(rows, 2)
    assert run_expiry(database_url, ENTITLEMENT_EXPIRY_BATCH_SIZE="10")["expired"] == 25
    sizes = rows.execute(
        "SELECT count(*) AS size FROM entitlement_audit WHERE operation = 'EXPIRE' GROUP BY transaction_id ORDER BY 1"
    )
    assert [row["size"] for row in sizes] == [5, 10, 10]


def test_concurrent_workers_record_each_end_once(client: Client, rows: Rows, database_url: str) -> None:
    """K4: four workers, real connections."""
    for number in range(60):
        client.grant(f"k{number}", user_id=f"u{number}", expires_at=in_hours(1))
    pass_time(rows, 2)
    run_concurrently(4, lambda _: run_expiry(database_url, ENTITLEMENT_EXPIRY_BATCH_SIZE="7"))
    run_expiry(database_url)  # what the last transaction held while the others looked
    counted = Counter(event for event, _ in events(rows))
    assert counted == {"EntitlementGranted": 60, "EntitlementExpired": 60}


def test_worker_leaves_a_locked_row_to_its_holder(client: Client, rows: Rows, database_url: str) -> None:
    """K4: it neither waits nor fails; the others are recorded."""
    for user in ("held", "free"):
        client.grant(user, user_id=user, expires_at=in_hours(1))
    pass_time(rows, 2)
    with rows.transaction():
        rows.execute("SELECT FROM entitlements WHERE user_id = 'held' FOR UPDATE")
        assert run_expiry(database_url)["expired"] == 1
    assert run_expiry(database_url)["expired"] == 1


RACING_USERS = [f"u{number}" for number in range(4)]


def _change_at_random(database_url: str, number: int) -> None:
    """Grant, extend and revoke the entitlements of few users, as one of several concurrent callers."""
    dice = random.Random(number)  # noqa: S311 - not a secret
    with Client(database_url) as client:
        operations = [
            lambda key, user: client.grant(key, user_id=user, expires_at=in_hours(1)),
            lambda key, user: client.extend(key, in_hours(1 + dice.random()), user_id=user),
            lambda key, user: client.revoke(key, user_id=user),
        ]
        for turn in range(40):
            response = dice.choice(operations)(f"{number}-{turn}", dice.choice(RACING_USERS))
            assert response.status in {200, 409}


def test_racing_changes_and_workers_leave_no_gap(client: Client, rows: Rows, database_url: str) -> None:
    """K4, E7: expiry against extend, revoke and re-grant of few entitlements whose ends pass all the time.

    Every version is there once, in the audit and in the outbox, and each operation was possible after the one before.
    """
    for user in RACING_USERS:
        client.grant(user, user_id=user, expires_at=in_hours(1))
    stop = threading.Event()

    def work(number: int) -> None:
        if number < 4:
            _change_at_random(database_url, number)
            return
        while not stop.wait(0.005):
            pass_time(rows, 1) if number == 4 else run_expiry(database_url)

    with ThreadPoolExecutor() as background:
        others = [background.submit(work, number) for number in (4, 5, 6)]
        try:
            run_concurrently(4, work)
        finally:
            stop.set()
    assert [other.result() for other in others] == [None] * 3
    expired = 0
    for user in RACING_USERS:
        names, versions = _operations(rows, user)
        assert versions == list(range(1, len(versions) + 1))
        assert [version for _, version in events(rows, f"{user}/item1")] == versions
        ended = [True, *(name in {"REVOKE", "EXPIRE"} for name in names)]
        assert [name == "GRANT" for name in names] == ended[:-1]
        expired += names.count("EXPIRE")
    assert expired > 0


def _operations(rows: Rows, user: str) -> tuple[list[str], list[int]]:
    """Return the applied operations on a user's entitlement and their versions, in order of version."""
    applied = rows.execute(
        "SELECT operation, version FROM entitlement_audit WHERE outcome = 'APPLIED' AND user_id = %s ORDER BY version",
        (user,),
    ).fetchall()
    return [row["operation"] for row in applied], [row["version"] for row in applied]


def test_refused_event_does_not_hold_back_the_others(client: Client, rows: Rows, database_url: str) -> None:
    """N5 in spirit: a row that PostgreSQL refuses is counted as failed, and the others are recorded.

    The next invocation of the same execution environment tries it again.
    """
    for user in ("bad", "u1", "u2"):
        client.grant(user, user_id=user, expires_at=in_hours(1))
    pass_time(rows, 2)
    rows.execute(
        "ALTER TABLE outbox_events ADD CONSTRAINT refuse CHECK (aggregate_version = 1 OR aggregate_key <> 'bad/item1')"
    )
    with expiry_worker(database_url) as worker:
        assert run_worker(worker) == NOTHING | {"expired": 2, "failed": 1}
        assert ("EXPIRE", 2, "EXPIRED") in history(rows)
        rows.execute("ALTER TABLE outbox_events DROP CONSTRAINT refuse")
        assert run_worker(worker) == NOTHING | {"expired": 1}


def test_many_refused_events_do_not_hold_back_the_others(client: Client, rows: Rows, database_url: str) -> None:
    """N5 in spirit: also if more entitlements are refused than one transaction tries one by one, and end first."""
    for number in range(45):
        client.grant(f"bad{number}", user_id=f"bad{number}", expires_at=in_hours(1))
    for number in range(30):
        client.grant(f"u{number}", user_id=f"u{number}", expires_at=in_hours(2))
        client.grant(f"s{number}", user_id=f"s{number}", starts_at=in_hours(1))
    pass_time(rows, 3)
    rows.execute(
        "ALTER TABLE outbox_events ADD CONSTRAINT refuse CHECK (aggregate_version = 1 OR aggregate_key NOT LIKE 'bad%')"
    )
    assert run_expiry(database_url) == {"started": 30, "expiring": 0, "expired": 30, "failed": 45}
    rows.execute("ALTER TABLE outbox_events DROP CONSTRAINT refuse")
    assert run_expiry(database_url) == NOTHING | {"expired": 45}


def test_worker_waits_if_everything_is_refused(
    client: Client, rows: Rows, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K4: after many failures it does not try the rest at once, so that a fault does not fill the log."""
    monkeypatch.setattr("grantwire.entitlements.expiry._MANY_FAILED", 20)
    for number in range(45):
        client.grant(f"k{number}", user_id=f"u{number}", expires_at=in_hours(1))
    pass_time(rows, 2)
    rows.execute("ALTER TABLE outbox_events ADD CONSTRAINT refuse CHECK (aggregate_version = 1)")
    assert run_expiry(database_url) == NOTHING | {"failed": 40}
    rows.execute("ALTER TABLE outbox_events DROP CONSTRAINT refuse")
    assert run_expiry(database_url) == NOTHING | {"expired": 45}


def test_missing_privilege_is_a_fault_of_the_system(client: Client, rows: Rows, database_url: str) -> None:
    """N6: nothing is counted as failed."""
    client.grant("k1", expires_at=in_hours(1))
    pass_time(rows, 2)
    rows.execute("REVOKE INSERT ON outbox_events FROM grantwire_functions")
    with pytest.raises(SystemFaultError):
        run_expiry(database_url)
    rows.execute("GRANT INSERT ON outbox_events TO grantwire_functions")
    assert run_expiry(database_url)["expired"] == 1
