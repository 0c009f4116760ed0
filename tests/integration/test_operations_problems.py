"""W4: everything that stops the arrival of changes is a problem, with since when, the last error and what to do."""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.errors import RetryableError
from grantwire.operations.advice import ADVICE
from grantwire.operations.problems import WORKERS, ProblemSettings
from grantwire.operations.status import Statuses
from grantwire.settings import load
from grantwire.wiring.workers.bridge_events import BridgeRuntime
from grantwire.wiring.workers.deliver_notifications import DeliveryRuntime
from grantwire.workers.budget import Budget
from tests.integration.test_operations_status import STATUS, beat
from tests.support.dead_letters import budget as idle_budget
from tests.support.lossy_stream import LossyStream
from tests.support.nats_users import configure
from tests.support.operations import OpsClient
from tests.support.servers import newest_postgres
from tests.support.workers.deliver_receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.integration.conftest import Rows
    from tests.support.client import Client

pytestmark = newest_postgres
MINUTE = timedelta(minutes=1)


@pytest.fixture
def ops(database_url: str, rows: Rows) -> Iterator[OpsClient]:
    """Caller of the operations API, of an installation whose workers have all reported."""
    for worker in WORKERS:
        beat(rows, worker)
    with OpsClient(database_url) as client:
        yield client


def problems(ops: OpsClient, after: timedelta = timedelta(0), **settings: str) -> dict[str, Any]:
    """Return the problems by code, as the status reports them after some time; each has advice."""
    environ = {f"STATUS_{name.upper()}": value for name, value in settings.items()}
    statuses = Statuses(ops.runtime.database, load(ProblemSettings, environ), ops.runtime.times)
    status = statuses.read(datetime.now(UTC) + after)
    assert (status["state"] == "OK") == (not status["problems"])
    assert all(problem["still_works"] and problem["to_do"] for problem in status["problems"])
    return {problem["code"]: problem for problem in status["problems"]}


def deliver(environ: Mapping[str, str], budget: Budget) -> dict[str, Any]:
    """Run a delivery."""
    runtime = DeliveryRuntime.build(environ)
    try:
        return runtime.run(budget)
    finally:
        runtime.close()


def test_receiver_that_returns_500_is_never_ok(environ: dict[str, str], ops: OpsClient, rows: Rows) -> None:
    """W3, W4, the staged incident: 5,004 notifications are due for seven minutes, none is sent, and the status says so.

    It says since when, why, how many wait for which reason and up to when everything has arrived. It is OK after the
    repair.
    """
    first = datetime.now(UTC) - 7 * MINUTE
    rows.execute(
        """
        INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload,
                                   occurred_at, next_retry_at)
        SELECT gen_random_uuid(), gen_random_uuid(), 'EntitlementGranted', 'u', 'item' || n, 1, '{"version": 1}',
               %(first)s + n * interval '80 ms', now()
          FROM generate_series(0, 5003) n""",
        {"first": first},
    )
    with Receiver(lambda _: 500) as receiver:
        environ |= receiver.environ | {"NOTIFICATION_SENDER_BREAKER_REST": "100ms"}
        deliver(environ, Budget(time.monotonic() + 2.0))
        status = ops.get(STATUS).json
        found = {problem["code"]: problem for problem in status["problems"]}
        assert set(found) == {"RECEIVER_UNAVAILABLE", "NOTIFICATIONS_OVERDUE"}
        assert "5004 notifications wait" in found["RECEIVER_UNAVAILABLE"]["message"]
        assert "status 500" in found["RECEIVER_UNAVAILABLE"]["last_error"]
        assert datetime.fromisoformat(found["NOTIFICATIONS_OVERDUE"]["since"]) == first
        assert "status 500" in found["NOTIFICATIONS_OVERDUE"]["last_error"]
        assert datetime.fromisoformat(status["settled"]["through"]) == first
        assert (status["settled"]["held_back_by"], status["settled"]["age_seconds"] >= 420) == ("notifications", True)
        assert (status["receiver"]["state"], status["receiver"]["failures_in_a_row"] >= 20) == ("UNAVAILABLE", True)
        (group,) = status["notifications"]["waiting"]
        assert ("status 500" in group["cause"], group["count"] >= 20) == (True, True)
        receiver.respond = lambda _: 204
        rows.execute("UPDATE notifications SET next_retry_at = now() WHERE next_retry_at > now()")
        assert deliver(environ, idle_budget(60.0))["sent"] == 5004
    status = ops.get(STATUS).json
    assert (status["state"], status["problems"], status["settled"]["held_back_by"]) == ("OK", [], None)
    assert (status["receiver"]["state"], status["receiver"]["failures_in_a_row"]) == ("AVAILABLE", 0)
    assert status["notifications"]["waiting"] == []


def test_open_circuit_is_reported_while_the_run_lasts(environ: dict[str, str], ops: OpsClient, rows: Rows) -> None:
    """W4: a run takes a minute, and an operator sees the circuit within seconds; without work it stops nothing."""
    rows.execute(
        "INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version,"
        " payload) SELECT gen_random_uuid(), gen_random_uuid(), 'EntitlementGranted', 'u', 's' || n, 1, '{}'"
        " FROM generate_series(1, 30) n"
    )
    with Receiver(lambda _: 503) as receiver:
        runtime = DeliveryRuntime.build(environ | receiver.environ)
        seen: list[Any] = []
        step = runtime.worker.step

        async def observed(budget: Budget) -> bool:
            seen.append(ops.get(STATUS).json)
            return await step(budget)

        def is_seen() -> bool:
            return any(status["receiver"]["state"] == "UNAVAILABLE" for status in seen)

        runtime.worker.step = observed  # type: ignore[method-assign]
        runtime.run(Budget(1.0, clock=lambda: 2.0 if is_seen() else 0.0))
        runtime.close()
    during = seen[-1]
    assert "RECEIVER_UNAVAILABLE" in {problem["code"] for problem in during["problems"]}
    rows.execute("TRUNCATE notifications")
    assert "RECEIVER_UNAVAILABLE" not in problems(ops)
    rows.execute(
        "UPDATE worker_heartbeats SET finished_at = now() - interval '1 hour', resumed_at = NULL"
        " WHERE worker LIKE 'deliver%%'"
    )
    assert ops.get(STATUS).json["receiver"]["state"] == "UNKNOWN"


def test_change_that_does_not_arrive_is_a_problem_at_each_stage(
    environ: dict[str, str], ops: OpsClient, client: Client, rows: Rows
) -> None:
    """W4: after the setting and not before; so the status is never OK while a change has not arrived."""
    client.grant("k")
    flow = LossyStream(environ, rows)
    beats = "UPDATE worker_heartbeats SET outcome = 'OK', finished_at = now() + interval '1 hour'"
    for code, advance in (
        ("EVENTS_OLD", flow.relay),
        ("EVENTS_UNCONFIRMED", flow.bridge),
        ("NOTIFICATIONS_OVERDUE", lambda: deliver(environ, idle_budget(9.0))),
    ):
        assert code not in problems(ops, settled_age_seconds="300")
        rows.execute(beats)
        found = problems(ops, 6 * MINUTE, settled_age_seconds="300")
        assert code in found
        assert datetime.now(UTC) - datetime.fromisoformat(found[code]["since"]) < 5 * MINUTE
        advance()
    rows.execute(beats)
    assert not {"EVENTS_OLD", "EVENTS_UNCONFIRMED", "NOTIFICATIONS_OVERDUE"} & problems(ops, 6 * MINUTE).keys()


def test_missing_stream_and_what_it_lost_are_named(environ: dict[str, str], ops: OpsClient, rows: Rows) -> None:
    """W1, W4: the stream is missing; then what was lost with it is reported for an hour, although it is repaired."""
    flow = LossyStream(environ, rows)
    flow.relay()
    flow.publish(users=3)
    flow.bridge()
    flow.delete_stream()
    runtime = BridgeRuntime.build(environ)
    with pytest.raises(RetryableError, match="is missing"):
        runtime.run(idle_budget(2.0))
    runtime.close()
    found = problems(ops)
    assert "is missing" in found["STREAM_MISSING"]["last_error"]
    assert "NATS_UNAVAILABLE" not in found
    configure(environ)
    flow.relay()
    flow.relay()
    flow.bridge()
    found = problems(ops)
    assert {"STREAM_HISTORY_LOST", "EVENTS_LOST"} <= found.keys()
    assert "with 3 events" in found["STREAM_HISTORY_LOST"]["message"]
    assert "3 events were lost by the stream and published again; 0 have not" in found["EVENTS_LOST"]["message"]
    assert found["EVENTS_LOST"]["since"] is not None
    later = problems(ops, 3 * timedelta(hours=1))
    assert not {"STREAM_HISTORY_LOST", "EVENTS_LOST"} & later.keys()
    rows.execute(
        "INSERT INTO outbox_unconfirmed (event_id, state, changed_at, found_at)"
        " VALUES (gen_random_uuid(), 'REPUBLISHED', now(), now())"
    )
    assert "1 have not arrived" in problems(ops, 3 * timedelta(hours=1))["EVENTS_LOST"]["message"]


@contextmanager
def _transaction(database_url: str) -> Iterator[None]:
    with psycopg.connect(database_url) as writer:
        writer.execute("INSERT INTO entitlements VALUES ('u', 's', 'ACTIVE', 1, now())")
        yield
        writer.rollback()


def test_transaction_that_stays_open_is_a_problem(ops: OpsClient, database_url: str) -> None:
    """W4: its changes are not visible, so nobody knows what it holds back."""
    with _transaction(database_url):
        assert "TRANSACTION_OPEN" not in problems(ops)
        assert problems(ops, 2 * MINUTE)["TRANSACTION_OPEN"]["since"] is not None
    assert "TRANSACTION_OPEN" not in problems(ops, 2 * MINUTE)


def test_events_that_were_never_compared_are_a_problem(environ: dict[str, str], ops: OpsClient, rows: Rows) -> None:
    """W4: since the oldest one, if no check has ended yet; an installation without events has nothing to compare."""
    assert "EVENTS_UNCHECKED" not in problems(ops, 6 * MINUTE)
    flow = LossyStream(environ, rows)
    flow.publish(users=1)
    flow.bridge()
    rows.execute("UPDATE outbox_confirmation SET completed_at = NULL, mark = '-infinity'")
    assert "EVENTS_UNCHECKED" not in problems(ops)
    found = problems(ops, 4 * MINUTE)["EVENTS_UNCHECKED"]
    (event,) = rows.execute("SELECT published_at FROM outbox_events").fetchall()
    assert datetime.fromisoformat(found["since"]) == event["published_at"]


DEGRADED = (
    "UPDATE worker_heartbeats SET outcome = 'DEGRADED', error = 'no route', last_success_at = now() WHERE worker = '{}'"
)
CASES: dict[str, str] = {
    "NATS_UNAVAILABLE": DEGRADED.format("bridge_events"),
    "WORKER_DEGRADED": DEGRADED.format("record_advisories"),
    "WORKER_FAILED": "UPDATE worker_heartbeats SET outcome = 'FAILED', error = 'KeyError', last_success_at = now()",
    "WORKER_LATE": "UPDATE worker_heartbeats SET finished_at = now() - interval '1 day'",
    "TIMES_OVERDUE": "INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at, expires_at)"
    " VALUES ('u', 's', 'ACTIVE', 1, now(), now() - interval '2 minutes')",
    "EVENTS_TOO_OLD": "INSERT INTO outbox_unconfirmed (event_id, state, changed_at, found_at)"
    " VALUES (gen_random_uuid(), 'TOO_OLD', now(), now())",
    "EVENTS_UNCHECKED": "UPDATE outbox_confirmation SET completed_at = now() - interval '5 minutes'",
    "COMMANDS_FAILED": "INSERT INTO operator_commands (command_id, kind, arguments, actor, reason, source, status,"
    " attempt_count, last_error, started_at, finished_at) VALUES (gen_random_uuid(), 'read_model.verify', '{}', 'a',"
    " 'r', 's', 'FAILED', 10, 'broken', now(), now())",
    "DEAD_LETTERS": "INSERT INTO notification_dlq (notification_id, event_id, event_type, user_id, stock_keeping_unit,"
    " version, payload, attempt_count, last_error) VALUES (gen_random_uuid(), gen_random_uuid(), 'EntitlementGranted',"
    " 'u', 's', 1, '{}', 10, 'refused')",
    "CONSUMER_LAG": "UPDATE worker_heartbeats SET result = '{\"consumer_lag\": 20000}' WHERE worker = 'bridge_events'",
    "READ_MODEL_DIFFERS": 'UPDATE worker_heartbeats SET result = \'{"ahead": 1, "behind": 0, "wrong": 0}\''
    " WHERE worker = 'sweep_retention'",
    "SCHEMA_DIFFERS": "UPDATE schema_definitions SET checksum = 'other' WHERE name LIKE '%rfc3339%'",
    "PARTITIONS_MISSING": "INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id,"
    " stock_keeping_unit, detail, occurred_at) VALUES (gen_random_uuid(), 'c', 'GRANT', 'ENTITLEMENT_STATE_CONFLICT',"
    " 'u', 's', '{}', '2020-01-01')",
    "CLIENT_EXPIRES": "INSERT INTO api_clients (client_id, name, scopes, token_hash, expires_at)"
    " VALUES ('0123456789ab', 'shop', ARRAY['ops:read'], repeat('0', 64), now() + interval '13 days')",
    "LEASES_EXPIRED": "INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit,"
    " version, payload, status, locked_by, locked_at, lease_until) VALUES (gen_random_uuid(), gen_random_uuid(),"
    " 'EntitlementGranted', 'u', 's', 1, '{}', 'PROCESSING', 'w', now(), now() - interval '1 second')",
}
# Those of the other tests of this file.
REAL = {
    *("RECEIVER_UNAVAILABLE", "NOTIFICATIONS_OVERDUE", "EVENTS_OLD", "EVENTS_UNCONFIRMED", "STREAM_MISSING"),
    *("STREAM_HISTORY_LOST", "EVENTS_LOST", "TRANSACTION_OPEN"),
}
NO_BEGINNING = {"SCHEMA_DIFFERS", "PARTITIONS_MISSING", "CONSUMER_LAG"}


def test_each_problem_has_its_cause_and_its_beginning(ops: OpsClient, rows: Rows) -> None:
    """W4: each code is reported for its cause, and only for it; every code has a test."""
    assert CASES.keys() | REAL == ADVICE.keys()
    for code, cause in CASES.items():
        with rows.transaction(force_rollback=True):
            assert problems_of(rows, ops) == {}
            rows.execute(cause.replace("%", "%%"))
            (problem,) = problems_of(rows, ops).values()
            assert problem["code"] == code
            assert (problem["since"] is None) == (code in NO_BEGINNING), code


def problems_of(rows: Rows, ops: OpsClient) -> dict[str, Any]:
    """Return the problems that a transaction of the owner sees."""

    class _Database:
        def fetch_row(self, statement: Any, parameters: Mapping[str, Any]) -> Any:
            with rows.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
                return cursor.execute(statement, parameters).fetchone()

    statuses = Statuses(_Database(), load(ProblemSettings, {}), ops.runtime.times)  # type: ignore[arg-type]
    return {problem["code"]: problem for problem in statuses.read()["problems"]}
