"""K3, K4: events with a start and an end, from the outbox to the read model and the notifications."""

from __future__ import annotations

import itertools
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.events import EVENT_TYPES
from grantwire.events.decoding import decode_payload
from grantwire.events.genuine import find_genuine
from grantwire.notifications import redrive
from grantwire.notifications.dead_letters import write_dead_letters
from grantwire.operations.commands import REBUILD
from grantwire.read_model.model import project
from tests.support.audit import OPERATIONS, audit_payloads
from tests.support.commands import Operations
from tests.support.read_model import (
    Entitlement,
    entitlement,
    event_for,
    insert_entitlements,
    payloads,
    read_model_rows,
    record_rows,
)
from tests.support.workers import relay_support
from tests.support.workers.bridge_stream import Stream, drain, event

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.integration.conftest import Rows

NOW = datetime.now(UTC).replace(microsecond=654321)
START, END = NOW + timedelta(days=1), NOW + timedelta(days=31)
TIMES = {"starts_at": START, "expires_at": END}
MICROSECOND = timedelta(microseconds=1)
NOTHING_ELSE = {"duplicates": 0, "terminated": 0, "not_genuine": 0, "returned": 0}


def with_times(version: int, starts_at: datetime | None = START, expires_at: datetime | None = END) -> Entitlement:
    """Return an entitlement with these times."""
    return entitlement("u_123", version)._replace(starts_at=starts_at, expires_at=expires_at)


def is_genuine(database_url: str, **fields: Any) -> bool:
    """Return whether an event is genuine."""
    with psycopg.connect(database_url) as functions:
        return find_genuine(functions, [decode_payload(event(**fields).SerializeToString())], [b""]) == {0}


@pytest.mark.parametrize("event_type", sorted(EVENT_TYPES))
def test_event_of_each_type_is_genuine_only_with_its_operation(database_url: str, rows: Rows, event_type: str) -> None:
    """G1, K4: a forged type does not turn an extension into a grant, or a notice into an end."""
    sent: dict[str, Any] = {"event_id": str(uuid.uuid4()), "occurred_at": NOW, **TIMES}
    audit_payloads(rows, [decode_payload(event(**sent, event_type=event_type).SerializeToString())])
    accepted = {name for name in EVENT_TYPES if is_genuine(database_url, **sent, event_type=name)}
    assert accepted == {event_type}


@pytest.mark.parametrize("age", [timedelta(0), timedelta(days=3)], ids=["near", "far"])
def test_event_is_genuine_only_with_the_times_of_its_change(database_url: str, rows: Rows, age: timedelta) -> None:
    """G1, K3: later, earlier, absent or added, in the search around the event's time and in the one without it."""
    times: list[dict[str, datetime]] = [
        TIMES,
        {},
        {"starts_at": START},
        {"expires_at": END},
        {**TIMES, "expires_at": END + MICROSECOND},
        {**TIMES, "starts_at": START - MICROSECOND},
    ]
    for audited in times[:4]:
        sent: dict[str, Any] = {"event_id": str(uuid.uuid4()), "occurred_at": NOW - age}
        audit_payloads(rows, [decode_payload(event(**sent, **audited).SerializeToString())])
        assert [other for other in times if is_genuine(database_url, **sent, **other)] == [audited]


def test_event_with_a_forged_end_is_terminated(environ: dict[str, str], stream: Stream, rows: Rows) -> None:
    """G1, K3: in a batch with the real one; only the real one reaches inbox, notification and read model."""
    real = event_for(with_times(1))
    forged, endless = (
        event_for(with_times(1, expires_at=END + timedelta(days=365))),
        event_for(with_times(1, None, None)),
    )
    forged.event_id = endless.event_id = real.event_id
    stream.audit(real)
    stream.publish_forged(forged, endless, real)
    assert drain(environ) == {"recorded": 1, **NOTHING_ELSE, "terminated": 2, "not_genuine": 2}
    assert read_model_rows(rows) == [with_times(1)]
    (notification,) = rows.execute("SELECT payload FROM notifications").fetchall()
    assert notification["payload"].items() >= _rfc3339(TIMES).items()


def test_outbox_event_with_times_reaches_every_table(environ: dict[str, str], rows: Rows) -> None:
    """K3, N4, P1: through relay, stream and bridge, with microseconds; one time, both, or none."""
    for number, times in enumerate(({"expires_at": END}, {}, TIMES)):
        event_id = relay_support.enqueue(rows, f"a{number}", 1, user_id=f"u{number}", **_rfc3339(times))
        payload = relay_support.payload(event_id, 1, user_id=f"u{number}", **_rfc3339(times))
        audit_payloads(rows, [payload])
    relay_support.drain(environ)
    assert drain(environ) == {"recorded": 3, **NOTHING_ELSE}
    expected = [{"starts_at": None, "expires_at": END}, {"starts_at": None, "expires_at": None}, TIMES]
    statement = "SELECT starts_at, expires_at FROM user_entitlements ORDER BY user_id"
    assert rows.execute(statement).fetchall() == expected
    (plain,) = rows.execute("SELECT payload FROM notifications WHERE user_id = 'u1'").fetchall()
    assert not {"starts_at", "expires_at"} & plain["payload"].keys()
    (both,) = rows.execute("SELECT payload FROM notifications WHERE user_id = 'u2'").fetchall()
    assert {name: both["payload"][name] for name in TIMES} == _rfc3339(TIMES)


def test_every_event_type_leads_to_its_status(environ: dict[str, str], stream: Stream, rows: Rows) -> None:
    """K4, P1: the bridge records all six types, in the read model with the status after the event."""
    for event_type in EVENT_TYPES:
        stream.publish(event(event_type=event_type, user_id=event_type, **TIMES))
    assert drain(environ) == {"recorded": 6, **NOTHING_ELSE}
    assert {row.user_id: row.status for row in read_model_rows(rows)} == {
        "EntitlementGranted": "ACTIVE",
        "EntitlementRevoked": "REVOKED",
        "EntitlementExtended": "ACTIVE",
        "EntitlementStarted": "ACTIVE",
        "EntitlementExpiring": "ACTIVE",
        "EntitlementExpired": "EXPIRED",
    }
    assert OPERATIONS.keys() == EVENT_TYPES


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_times_of_the_newest_version_win(database_url: str, rows: Rows, order: tuple[int, ...]) -> None:
    """P1, K3: an older version never brings its times back; a newer one without an end removes the end."""
    history = [with_times(1, expires_at=None), with_times(3), with_times(5, starts_at=None, expires_at=None)]
    for number in order:
        with psycopg.connect(database_url) as tx:
            project(tx, payloads([history[number]]))
    assert read_model_rows(rows) == [history[2]]
    with psycopg.connect(database_url) as tx:
        rows.execute("DELETE FROM user_entitlements")
        assert project(tx, payloads([history[number] for number in order])) == 1
    assert read_model_rows(rows) == [history[2]]


def test_both_rebuilds_restore_the_times(environ: dict[str, str], stream: Stream, rows: Rows) -> None:
    """P2, K3: from an empty table and from old times, both sources end equal to the system of record."""
    last = [
        with_times(3),
        with_times(5, None, END)._replace(user_id="u_end"),
        with_times(7, START, None)._replace(user_id="u_start"),
        with_times(9, None, None)._replace(user_id="u_unlimited"),
        with_times(4, NOW - timedelta(days=2), NOW)._replace(user_id="u_ended", status="EXPIRED"),
    ]
    first = [item._replace(version=1, status="ACTIVE", starts_at=None, expires_at=NOW) for item in last]
    stream.publish(*map(event_for, [*first, *last]))
    insert_entitlements(rows, last)
    assert drain(environ) == {"recorded": 10, **NOTHING_ELSE}
    assert read_model_rows(rows) == record_rows(rows) == sorted(last)
    damages = ("DELETE FROM user_entitlements", "UPDATE user_entitlements SET version = 2, expires_at = now()")
    for source, damage in itertools.product(("record", "stream"), damages):
        rows.execute(damage)
        with Operations(environ) as operations:
            report = operations.execute(REBUILD, source=source)
        assert report["complete"]
        assert read_model_rows(rows) == sorted(last)
        assert rows.execute("SELECT * FROM user_entitlements_differences").fetchall() == []
        assert rows.execute("SELECT * FROM user_summaries_differences").fetchall() == []


def test_dead_letter_and_redrive_keep_the_times(database_url: str, rows: Rows, environ: dict[str, str]) -> None:
    """Q4, K3: also if the notification was swept meanwhile."""
    with Stream(environ) as stream:
        stream.publish(event(**TIMES))
        drain(environ)
    (before,) = rows.execute("UPDATE notifications SET status = 'FAILED', next_retry_at = NULL RETURNING *").fetchall()
    with psycopg.connect(database_url) as tx:
        write_dead_letters(tx, [before["notification_id"]])
    (dead_letter,) = rows.execute("SELECT payload FROM notification_dlq").fetchall()
    assert dead_letter["payload"].items() >= _rfc3339(TIMES).items()
    rows.execute("DELETE FROM notifications")
    with psycopg.connect(database_url) as tx:
        redrive(tx, [before["notification_id"]])
    (after,) = rows.execute("SELECT payload FROM notifications").fetchall()
    assert after == dead_letter == {"payload": before["payload"]}


def _rfc3339(times: Mapping[str, datetime]) -> dict[str, str]:
    return {name: time.isoformat(timespec="microseconds").replace("+00:00", "Z") for name, time in times.items()}
