"""G1: only events that the audit has are recorded, projected and redriven, whatever a NATS user publishes."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.errors import RejectedError
from grantwire.events.decoding import decode_payload
from grantwire.events.genuine import NOT_GENUINE, find_genuine, message_digest
from grantwire.events.v1 import EntitlementEvent
from grantwire.operations.commands import REBUILD
from tests.support.audit import audit_payloads
from tests.support.commands import Operations
from tests.support.dead_letters import Pipeline, event_bytes, event_headers
from tests.support.workers import relay_support
from tests.support.workers.bridge_stream import Stream, drain, event

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.integration.conftest import Rows
    from tests.support.client import Client

MAX_VERSION = (1 << 63) - 1
OLD = datetime(2001, 2, 15, tzinfo=UTC)


@pytest.fixture
def pipeline(environ: dict[str, str]) -> Iterator[Pipeline]:
    """A stream and its workers."""
    with Pipeline(environ) as pipeline:
        yield pipeline


def forge(genuine: EntitlementEvent, **fields: Any) -> EntitlementEvent:
    """Return a copy of an event with other values."""
    forged = EntitlementEvent()
    forged.CopyFrom(genuine)
    for name, value in fields.items():
        setattr(forged, name, value)
    return forged


def grant_and_read(client: Client, environ: dict[str, str], key: str = "k1") -> EntitlementEvent:
    """Grant an entitlement, publish its event with a relay, and return the event."""
    assert client.grant(key).status == 200
    relay_support.drain(environ)
    return relay_support.read_stream(environ)[-1].event


def read_model(rows: Rows) -> list[tuple[Any, ...]]:
    """Return user, status and version of each row of the read model."""
    statement = "SELECT user_id, status, version FROM user_entitlements ORDER BY user_id"
    return [tuple(row.values()) for row in rows.execute(statement)]


def notified_versions(rows: Rows) -> list[int]:
    """Return the versions of all notifications."""
    return [row["version"] for row in rows.execute("SELECT version FROM notifications ORDER BY version")]


def test_forged_version_does_not_freeze_an_entitlement(
    client: Client, environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """G1: the highest possible version creates no notification, and later changes still reach the read model."""
    grant_and_read(client, environ)
    assert drain(environ)["recorded"] == 1
    stream.publish_forged(event(version=MAX_VERSION))
    assert drain(environ) == {"recorded": 0, "duplicates": 0, "terminated": 1, "not_genuine": 1, "returned": 0}
    client.revoke("k2")
    relay_support.drain(environ)
    assert drain(environ)["recorded"] == 1
    assert read_model(rows) == [("u_123", "REVOKED", 2)]
    assert notified_versions(rows) == [1, 2]
    (advisory,) = stream.advisories()
    assert (advisory["stream_seq"], advisory["reason"]) == (2, NOT_GENUINE)


@pytest.mark.parametrize(
    "fields",
    [
        {"user_id": "u_other"},
        {"stock_keeping_unit": "item2"},
        {"version": 2},
        {"event_type": "EntitlementRevoked"},
        {"event_id": str(uuid.UUID(int=1))},
    ],
    ids=lambda fields: str(next(iter(fields))),
)
def test_forged_copy_of_a_real_event_is_terminated(
    client: Client, environ: dict[str, str], stream: Stream, rows: Rows, fields: dict[str, Any]
) -> None:
    """G1: it arrives in the batch of the real event, before and after it; only the real one is recorded."""
    assert client.grant("k1").status == 200
    (row,) = rows.execute("SELECT payload FROM outbox_events").fetchall()
    payload = row["payload"]
    real = event(**payload | {"occurred_at": datetime.fromisoformat(payload["occurred_at"])})
    forged = forge(real, **fields)
    stream.publish_forged(forged, real, forged)
    assert drain(environ) == {"recorded": 1, "duplicates": 0, "terminated": 2, "not_genuine": 2, "returned": 0}
    assert read_model(rows) == [("u_123", "ACTIVE", 1)]
    (notification,) = rows.execute("SELECT event_id, event_type, user_id, version FROM notifications").fetchall()
    assert notification == {
        "event_id": uuid.UUID(real.event_id),
        "event_type": "EntitlementGranted",
        "user_id": "u_123",
        "version": 1,
    }


def test_replayed_genuine_event_is_harmless(
    client: Client, environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """G1, N4: it is acknowledged as a duplicate and raises no alarm."""
    real = grant_and_read(client, environ)
    stream.publish_forged(real)
    assert drain(environ) == {"recorded": 1, "duplicates": 1, "terminated": 0, "not_genuine": 0, "returned": 0}
    stream.publish_forged(real)
    assert drain(environ) == {"recorded": 0, "duplicates": 1, "terminated": 0, "not_genuine": 0, "returned": 0}
    assert notified_versions(rows) == [1]


def test_refused_operation_makes_no_event_genuine(
    client: Client, environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """G1: the audit has the operation, but with another outcome than APPLIED."""
    client.grant("k1")
    assert client.grant("k2").status == 409
    statement = "SELECT operation_id FROM entitlement_audit WHERE outcome <> 'APPLIED'"
    (refused,) = rows.execute(statement).fetchall()
    stream.publish_forged(event(event_id=str(refused["operation_id"]), occurred_at=datetime.now(UTC)))
    assert drain(environ)["not_genuine"] == 1
    assert notified_versions(rows) == []


@pytest.mark.parametrize("age", [timedelta(0), timedelta(days=3)], ids=["near", "far"])
def test_only_an_applied_row_makes_an_event_genuine(database_url: str, rows: Rows, age: timedelta) -> None:
    """G1: everything else agrees, in the search around the event's time and in the one without a time.

    No function writes a refused row with a version, and a constraint forbids it; the search does not rely on that.
    """
    payload = decode_payload(event(occurred_at=datetime.now(UTC) - age).SerializeToString())
    audit_payloads(rows, [payload])
    with psycopg.connect(database_url, autocommit=True) as functions:
        assert find_genuine(functions, [payload], [b""]) == {0}
        rows.execute("ALTER TABLE entitlement_audit DROP CONSTRAINT entitlement_audit_applied")
        rows.execute("UPDATE entitlement_audit SET outcome = 'ENTITLEMENT_STATE_CONFLICT'")
        assert find_genuine(functions, [payload], [b""]) == set()


@pytest.mark.parametrize("age", [timedelta(0), timedelta(days=3)], ids=["near", "far"])
def test_each_forged_field_is_noticed_by_both_searches(database_url: str, rows: Rows, age: timedelta) -> None:
    """G1, K3: each field alone, in the search around the event's time and in the one without a time."""
    now = datetime.now(UTC)
    genuine = {
        "event_id": str(uuid.uuid4()),
        "event_type": "EntitlementGranted",
        "occurred_at": (now - age).isoformat(),
        "user_id": "u_1",
        "stock_keeping_unit": "item1",
        "version": 3,
        "starts_at": "2027-01-01T00:00:00.000000Z",
        "expires_at": "2027-02-01T00:00:00.123456Z",
    }
    forged = {
        "event_id": str(uuid.uuid4()),
        "event_type": "EntitlementExtended",
        "user_id": "u_2",
        "stock_keeping_unit": "item2",
        "version": 4,
        "starts_at": "2027-01-01T00:00:00.000001Z",
        "expires_at": "2027-02-01T00:00:00.123457Z",
    }
    audit_payloads(rows, [genuine])
    events = {"genuine": genuine} | {name: genuine | {name: value} for name, value in forged.items()}
    events |= {f"no {name}": genuine | {name: None} for name in ("starts_at", "expires_at")}
    with psycopg.connect(database_url) as functions:
        found = find_genuine(functions, list(events.values()), [b""] * len(events))
    assert [name for position, name in enumerate(events) if position in found] == ["genuine"]


def test_event_far_from_its_audit_row_is_genuine(client: Client, environ: dict[str, str], rows: Rows) -> None:
    """G1, E1: updated_at runs ahead of the clock after a change with a wrong clock; the event has that time."""
    client.grant("k1")
    rows.execute("UPDATE entitlements SET updated_at = now() + interval '40 days'")
    client.revoke("k2")
    relay_support.drain(environ)
    assert drain(environ)["recorded"] == 2
    assert read_model(rows) == [("u_123", "REVOKED", 2)]


def test_rebuild_from_the_stream_ignores_forged_events(
    client: Client, environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """G1, P2: they are skipped and counted."""
    real = grant_and_read(client, environ)
    stream.publish_forged(forge(real, version=MAX_VERSION), event(user_id="u_never"))
    rows.execute("DELETE FROM user_entitlements")
    with Operations(environ) as operations:
        result = operations.execute(REBUILD, source="stream")
    assert (result["events"], result["skipped"], result["not_genuine"], result["complete"]) == (1, 2, 2, True)
    assert result["changed"] == 1
    assert read_model(rows) == [("u_123", "ACTIVE", 1)]


def test_function_refuses_more_events_than_its_limit(database_url: str) -> None:
    """G1: a caller cannot make the database work without a bound."""
    payload = decode_payload(event().SerializeToString())
    with psycopg.connect(database_url) as tx:
        assert find_genuine(tx, [payload] * 5000, [b""] * 5000) == set()
        with pytest.raises(RejectedError, match="at most 5000 events"):
            find_genuine(tx, [payload] * 5001, [b""] * 5001)


def test_forged_dead_letter_cannot_be_redriven(pipeline: Pipeline, rows: Rows) -> None:
    """G1, Q2: the audit should have the event, so not even force redrives it; it can be discarded."""
    event_id = uuid.uuid4()
    record_dead_letter(pipeline, event_bytes(event_id), event_headers(event_id))
    for force in (False, True):
        report = pipeline.execute(action="redrive", kind="nats", all=True, force=force)
        assert (report["done"], prefixes(report)) == (0, ["not genuine"])
    assert pipeline.last_sequence() == 1
    assert pipeline.execute(action="discard", kind="nats", all=True)["done"] == 1
    assert notified_versions(rows) == []


def test_event_whose_audit_month_was_dropped_is_redriven_with_force(pipeline: Pipeline, rows: Rows) -> None:
    """G1, Q2: only with force; then the bridge accepts exactly this message, and no other with its event id."""
    event_id = uuid.uuid4()
    message = event_bytes(event_id, time=OLD)
    record_dead_letter(pipeline, message, old_headers(event_id))
    refused = pipeline.execute(action="redrive", kind="nats", all=True)
    assert (refused["done"], prefixes(refused)) == (0, ["too old"])
    assert pipeline.execute(action="redrive", kind="nats", all=True, force=True)["done"] == 1
    forged = event_bytes(event_id, version=MAX_VERSION, time=OLD)
    pipeline.publish(forged, old_headers(event_id) | {"Nats-Msg-Id": "forged"}, genuine=False)
    counts = pipeline.run_bridge()
    assert (counts["recorded"], counts["not_genuine"]) == (1, 1)
    assert read_model(rows) == [("u_123", "ACTIVE", 1)]
    (action,) = rows.execute("SELECT selection FROM operator_actions").fetchall()
    assert action["selection"] == {"all": True, "force": True}


def test_force_is_committed_with_the_redrive_number(
    pipeline: Pipeline, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1, Q2: a crash before the publish leaves both; a redrive that needed no force leaves the mark unset."""
    event_id, other_id = uuid.uuid4(), uuid.uuid4()
    record_dead_letter(pipeline, event_bytes(event_id, time=OLD), old_headers(event_id))
    record_dead_letter(pipeline, event_bytes(other_id), event_headers(other_id), genuine=True)
    with monkeypatch.context() as crash:
        crash.setattr(pipeline.operations.republisher, "publish", _crash)
        with pytest.raises(MemoryError):
            pipeline.execute(action="redrive", kind="nats", all=True, force=True)
    marks = rows.execute("SELECT event_id, forced, redrive_count FROM notification_nats_dlq ORDER BY stream_seq")
    assert [tuple(row.values()) for row in marks] == [(event_id, True, 1), (other_id, False, 1)]


def test_forced_redrive_needs_the_event_id_in_the_header(pipeline: Pipeline) -> None:
    """G1: the bridge could not find the dead letter of another event id; so the redrive is skipped, not repeated."""
    event_id = uuid.uuid4()
    record_dead_letter(pipeline, event_bytes(event_id, time=OLD), old_headers(uuid.uuid4()))
    report = pipeline.execute(action="redrive", kind="nats", all=True, force=True)
    assert (report["done"], prefixes(report)) == (0, ["not genuine"])


def test_forced_message_is_part_of_a_rebuild_from_the_stream(database_url: str, rows: Rows) -> None:
    """G1, P2: the bridge and the rebuild use the same decision."""
    message = event_bytes(uuid.uuid4(), time=OLD)
    payload, digest = decode_payload(message), message_digest(message)
    rows.execute(
        "INSERT INTO notification_nats_dlq (dead_letter_id, stream, consumer, stream_seq, kind, deliveries, subject,"
        " payload, event_id, message_time, advised_at, forced)"
        " VALUES (gen_random_uuid(), 's', 'c', 1, 'MSG_TERMINATED', 1, 's', %s, %s, now(), now(), true)",
        (message, payload["event_id"]),
    )
    with psycopg.connect(database_url) as tx:
        assert find_genuine(tx, [payload, payload], [b"other", digest]) == {1}
        assert find_genuine(tx, [payload | {"event_id": str(uuid.UUID(int=1))}], [digest]) == set()
        rows.execute("UPDATE notification_nats_dlq SET forced = false")
        assert find_genuine(tx, [payload], [digest]) == set()


def record_dead_letter(pipeline: Pipeline, message: bytes, headers: dict[str, str], *, genuine: bool = False) -> None:
    """Publish a message, let the bridge or the test terminate it, and record its dead letter."""
    sequence = pipeline.publish(message, headers, genuine=genuine)
    if genuine:
        pipeline.terminate_next("a bug")
    else:
        assert pipeline.run_bridge()["not_genuine"] == 1
    pipeline.wait_for_advisories(sequence)
    assert pipeline.run_recorder()["recorded"] == 1


def old_headers(event_id: uuid.UUID) -> dict[str, str]:
    """Return the headers of an event that is older than the audit."""
    return event_headers(event_id, occurred_at=(OLD + timedelta(seconds=1)).isoformat().replace("+00:00", "Z"))


def prefixes(report: dict[str, Any]) -> Sequence[str]:
    """Return the first words of the reasons for which dead letters were skipped."""
    return [reason.partition(":")[0] for reason in report["skipped"]]


def _crash(*_: object) -> None:
    raise MemoryError("the process dies")
