"""T1: the status of every stage, and the heartbeats of the workers."""

from __future__ import annotations

import asyncio
import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.clients.scopes import ROUTES
from grantwire.database import DatabaseSettings
from grantwire.database.migrations import read_schema
from grantwire.observability import metrics
from grantwire.operations.problems import WORKERS, ProblemSettings
from grantwire.operations.samples import Samples
from grantwire.operations.status import Statuses
from grantwire.settings import load
from grantwire.wiring.workers.bridge_events import BridgeRuntime
from grantwire.wiring.workers.relay_outbox import RelayRuntime
from grantwire.wiring.workers.sweep_retention import SweepRuntime
from grantwire.workers.heartbeats import Heartbeats, Run
from grantwire.workers.schedule import ScheduleSettings
from tests.support.dead_letters import budget
from tests.support.nats_users import configured
from tests.support.operations import OpsClient
from tests.support.waiting import budget_until
from tests.support.workers.bridge_stream import Stream
from tests.support.workers.bridge_stream import event as bridge_event
from tests.support.workers.relay_support import worker_environ

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from grantwire.workers.budget import Budget
    from infra.local.servers.nats import NatsServer
    from tests.integration.conftest import Rows
    from tests.support.client import Client

STATUS = "/v1/ops/status"


@pytest.fixture
def ops(database_url: str) -> Iterator[OpsClient]:
    """Caller of the operations API."""
    with OpsClient(database_url) as client:
        yield client


def codes(status: Any) -> set[str]:
    """Return the codes of the problems."""
    return {problem["code"] for problem in status["problems"]}


def beat(rows: Rows, worker: str, ago: str = "1 second", **columns: Any) -> None:
    """Write a heartbeat."""
    values = {"outcome": "OK", "error": None, "result": "{}", "failures": 0} | columns
    rows.execute(
        "INSERT INTO worker_heartbeats (worker, started_at, finished_at, outcome, error, result, failures)"
        " VALUES (%(worker)s, now() - %(ago)s::interval - interval '1 minute', now() - %(ago)s::interval,"
        " %(outcome)s, %(error)s, %(result)s, %(failures)s)",
        {"worker": worker, "ago": ago, **values},
    )


def test_status_of_a_healthy_system_has_no_problem(ops: OpsClient, rows: Rows) -> None:
    """T1: every worker has reported, and nothing waits."""
    for worker in WORKERS:
        beat(rows, worker)
    status = ops.get(STATUS).json
    assert (status["state"], status["problems"]) == ("OK", [])
    assert status["schema"] == {"version": read_schema().version, "expected": read_schema().version, "matches": True}
    assert status["partitions"]["months_ahead"] == 3
    assert [worker["worker"] for worker in status["workers"]] == sorted(WORKERS)


def test_status_counts_each_state(ops: OpsClient, client: Client, rows: Rows) -> None:
    """T1: the outbox by state, leases held and expired, notifications and the age of the oldest event."""
    for number in range(6):
        client.grant(f"k{number}", user_id=f"u{number}")
    set_state = "UPDATE outbox_events SET status = %s, {} WHERE payload->>'user_id' = %s"
    leased = "locked_by = 'w', locked_at = now(), lease_until = now() + %s::interval"
    rows.execute(set_state.format(leased), ("IN_FLIGHT", "1 minute", "u0"))
    rows.execute(set_state.format(leased), ("IN_FLIGHT", "-1 minute", "u1"))
    rows.execute(set_state.format("ready = false, last_error = 'broken'"), ("FAILED", "u2"))
    rows.execute(set_state.format("ready = false, published_at = now()"), ("PUBLISHED", "u3"))
    rows.execute("UPDATE outbox_events SET created_at = now() - interval '5 minutes' WHERE payload->>'user_id' = 'u4'")
    status = ops.get(STATUS).json
    outbox = status["outbox"]
    assert (outbox["pending"], outbox["in_flight"], outbox["failed"]) == (2, 2, 1)
    assert (outbox["capped"], outbox["published_last_minute"]) == (False, 1)
    assert 300 <= outbox["oldest_pending_seconds"] < 400
    leases = status["leases"]["outbox"]
    assert (leases["held"], leases["expired"], leases["expired_since"] is None) == (1, 1, False)
    (group,) = status["dead_letters"]["groups"]
    assert (group["kind"], group["cause"], group["count"]) == ("outbox", "broken", 1)
    assert {"EVENTS_OLD", "LEASES_EXPIRED", "DEAD_LETTERS"} <= codes(status)


@pytest.mark.parametrize("number", [3, 4])
def test_counts_stop_at_the_cap(
    ops: OpsClient, client: Client, rows: Rows, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """T1: the cost of the status does not depend on the backlog. The response says if there are more."""
    monkeypatch.setattr("grantwire.operations.status._CAP", 3)
    for change in range(number):
        client.grant(f"k{change}", user_id=f"u{change}")
    rows.execute(
        "INSERT INTO notifications"
        " (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload)"
        " SELECT gen_random_uuid(), event_id, event_type, payload->>'user_id', 'item1', 1, payload FROM outbox_events"
    )
    status = ops.get(STATUS).json
    for stage in ("outbox", "notifications"):
        assert (status[stage]["pending"], status[stage]["capped"]) == (3, number > 3)


def test_failed_event_has_a_time_until_it_is_redriven(client: Client, rows: Rows) -> None:
    """T1: the trigger sets failed_at, whichever statement changes the status, and removes it."""
    client.grant("k")
    rows.execute("UPDATE outbox_events SET status = 'FAILED', ready = false, next_retry_at = '2026-01-08T00:00:00Z'")
    (failed,) = rows.execute("SELECT failed_at, event_id FROM outbox_events").fetchall()
    assert failed["failed_at"] == datetime(2026, 1, 8, tzinfo=UTC)
    rows.execute("SELECT outbox_redrive(ARRAY[%s])", (failed["event_id"],))
    assert rows.execute("SELECT failed_at FROM outbox_events").fetchall() == [{"failed_at": None}]


@pytest.mark.parametrize(
    ("ago", "outcome", "result", "state"),
    [
        ("1 second", "OK", '{"consumer_lag": 5}', "UP"),
        ("1 second", "OK", "{}", "UP"),
        ("1 second", "DEGRADED", "{}", "DOWN"),
        ("1 second", "DEGRADED", '{"consumer_lag": 0}', "UP"),
        ("1 second", "FAILED", "{}", "UNKNOWN"),
        ("10 minutes", "OK", '{"consumer_lag": 5}', "UNKNOWN"),
    ],
)
def test_state_of_nats_comes_from_the_heartbeat_of_the_bridge(
    ops: OpsClient, rows: Rows, ago: str, outcome: str, result: str, state: str
) -> None:
    """T1: an old report says nothing about now."""
    beat(rows, "bridge_events", ago, outcome=outcome, result=result, error="NATS is unreachable", failures=1)
    status = ops.get(STATUS).json
    assert status["stream"]["state"] == state
    assert ("NATS_UNAVAILABLE" in codes(status)) == (state == "DOWN")
    assert ("WORKER_FAILED" in codes(status)) == (outcome == "FAILED")


@pytest.mark.parametrize(
    ("ago", "outcome", "measured", "lag"),
    [
        ("50 seconds", "OK", "1 second", 5),
        ("50 seconds", "DEGRADED", "1 second", 5),
        ("50 seconds", "OK", "3 minutes", None),
        ("50 seconds", "DEGRADED", None, None),
        ("10 minutes", "OK", "10 minutes", None),
    ],
)
def test_consumer_lag_is_unknown_rather_than_old(
    ops: OpsClient, rows: Rows, ago: str, outcome: str, measured: str | None, lag: int | None
) -> None:
    """T1: the status says since when it is unknown; the sample of the minute has no number either."""
    beat(rows, "bridge_events", ago, outcome=outcome, error="NATS is unreachable")
    rows.execute("UPDATE worker_heartbeats SET last_success_at = '2026-01-08T07:10:00Z'")
    if measured is not None:
        at = "rfc3339(now() - %s::interval)"
        facts = f"jsonb_build_object('consumer_lag', 5, 'consumer_lag_at', {at})"
        rows.execute(f"UPDATE worker_heartbeats SET result = {facts}", (measured,))  # noqa: S608
    stream = ops.get(STATUS).json["stream"]
    (heartbeat,) = rows.execute("SELECT result FROM worker_heartbeats").fetchall()
    measured_at = heartbeat["result"].get("consumer_lag_at")
    assert stream["consumer_lag"] == lag
    known, unknown = (measured_at, None) if lag is not None else (None, measured_at or "2026-01-08T07:10:00.000000Z")
    assert (stream["measured_at"], stream["unknown_since"]) == (known, unknown)
    assert Samples(ops.runtime.database, ops.runtime.times, load(ScheduleSettings, {})).take_if_due()
    assert rows.execute("SELECT consumer_lag FROM status_samples").fetchall() == [{"consumer_lag": lag}]


def test_late_worker_and_other_problems_are_named(ops: OpsClient, rows: Rows) -> None:
    """T1: what needs a person, each with a code for programs."""
    beat(rows, "relay_outbox", "10 minutes")
    beat(rows, "bridge_events", result='{"consumer_lag": 20000}')
    beat(rows, "sweep_retention", "2 hours", result='{"ahead": 1, "behind": 4, "wrong": 0}')
    rows.execute("UPDATE schema_definitions SET checksum = 'other' WHERE name LIKE '%%rfc3339%%'")
    status = ops.get(STATUS).json
    late = {worker["worker"]: worker["late"] for worker in status["workers"]}
    assert late == {"relay_outbox": True, "bridge_events": False, "sweep_retention": False}
    assert status["read_model"]["behind"] == 4
    assert {"WORKER_LATE", "CONSUMER_LAG", "READ_MODEL_DIFFERS", "SCHEMA_DIFFERS"} <= codes(status)
    assert "deliver_notifications has never reported a run" in {problem["message"] for problem in status["problems"]}


def test_missing_partition_is_a_problem(ops: OpsClient) -> None:
    """T1: the runway is counted up to the first month without a partition."""
    statuses = Statuses(ops.runtime.database, load(ProblemSettings, {}), ops.runtime.times)
    later = statuses.read(datetime.now(UTC) + timedelta(days=95))
    assert later["partitions"]["months_ahead"] <= 0
    assert "PARTITIONS_MISSING" in codes(later)


def test_run_of_each_worker_leaves_a_heartbeat(environ: dict[str, str], ops: OpsClient) -> None:
    """T1: when it ran, how long, and with what result; the bridge adds the consumer lag."""
    for build in (RelayRuntime.build, BridgeRuntime.build, SweepRuntime.build):
        runtime = build(environ)
        runtime.run(budget())
        runtime.close()
    workers = {worker["worker"]: worker for worker in ops.get(STATUS).json["workers"]}
    assert {name: worker["outcome"] for name, worker in workers.items()} == {
        "relay_outbox": "OK",
        "bridge_events": "OK",
        "sweep_retention": "OK",
    }
    assert workers["bridge_events"]["result"]["consumer_lag"] == 0
    assert workers["sweep_retention"]["result"]["complete"] is True
    assert all(worker["last_success_at"] == worker["finished_at"] for worker in workers.values())


def test_outage_of_nats_is_reported_while_it_lasts(
    database_url: str, nats_server: NatsServer, ops: OpsClient, rows: Rows
) -> None:
    """T1: the bridge reports an outage at once, counts it as a failed run at its end, and reports the recovery.

    A run takes a minute, and an operator must see the outage within seconds.
    """
    environ = configured(worker_environ(database_url, nats_server.url)) | {"NATS_CONNECT_TIMEOUT": "200ms"}
    runtime = BridgeRuntime.build(environ)
    runtime.run(budget())
    nats_server.stop()
    seen: list[Any] = []
    assert runtime.heartbeats is not None
    record, report = runtime.heartbeats.record, runtime.heartbeats.report

    class Recording:
        def report(self, run: Run, facts: Mapping[str, Any]) -> None:
            report(run, facts)

        def record(self, run: Run) -> None:
            record(run)
            seen.append((run.is_over, run.outcome, rows.execute("SELECT failures FROM worker_heartbeats").fetchall()))

    object.__setattr__(runtime, "heartbeats", Recording())
    runtime.run(budget_until(lambda: seen))
    assert seen == [(False, "DEGRADED", [{"failures": 0}]), (True, "DEGRADED", [{"failures": 1}])]
    status = ops.get(STATUS).json
    (bridge,) = status["workers"]
    assert (bridge["outcome"], bridge["failures_in_a_row"]) == ("DEGRADED", 1)
    assert (status["stream"]["state"], status["stream"]["reason"]) == ("DOWN", bridge["error"])
    nats_server.start()
    runtime.run(budget())
    (bridge,) = ops.get(STATUS).json["workers"]
    assert (bridge["outcome"], bridge["failures_in_a_row"]) == ("OK", 0)
    assert bridge["result"]["consumer_lag"] == 0
    runtime.close()


def test_worker_that_runs_again_is_not_late(environ: dict[str, str], ops: OpsClient, rows: Rows) -> None:
    """T1, W4: from its first step on; if no run ends then, it is late again, as if it had not begun."""
    beat(rows, "deliver_notifications", "10 minutes")
    late = "SELECT greatest(finished_at, resumed_at) > now() - interval '1 minute' AS seen FROM worker_heartbeats"

    def is_late() -> bool:
        (worker,) = ops.get(STATUS).json["workers"]
        return bool(worker["late"])

    assert is_late()
    heartbeats = Heartbeats(load(DatabaseSettings, environ), "deliver_notifications")
    heartbeats.report(Run(0.1, {}, is_over=False), {})
    assert not is_late()
    assert rows.execute(late).fetchall() == [{"seen": True}]
    rows.execute("UPDATE worker_heartbeats SET resumed_at = resumed_at - interval '5 minutes'")
    again = Heartbeats(load(DatabaseSettings, environ), "deliver_notifications")  # the run was killed
    again.report(Run(0.1, {}, is_over=False), {})
    assert is_late()
    assert Samples(ops.runtime.database, ops.runtime.times, load(ScheduleSettings, {})).take_if_due()
    assert metrics.metric_set["WorkersLate"]["Value"] == [1]


def test_consumer_lag_is_known_during_a_run(
    environ: dict[str, str], stream: Stream, ops: OpsClient, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1: after the first step, and again during the run; an outage that has ended is not shown until the run ends."""
    monkeypatch.setattr("grantwire.notifications.bridge._LAG_SECONDS", 0.0)
    beat(rows, "bridge_events", outcome="DEGRADED", error="NATS is unreachable", result='{"recorded": 9}', failures=2)
    assert ops.get(STATUS).json["stream"]["state"] == "DOWN"
    runtime = BridgeRuntime.build(environ)
    seen: list[Any] = []
    step = runtime.worker.step

    async def observed(budget: Budget) -> bool:
        if len(seen) == 1:
            await asyncio.to_thread(stream.publish, bridge_event(), bridge_event())
        seen.append(ops.get(STATUS).json)
        return await step(budget)

    runtime.worker.step = observed  # type: ignore[method-assign]
    runtime.run(budget_until(lambda: any(status["stream"]["consumer_lag"] == 2 for status in seen)))
    runtime.close()
    lags = [status["stream"]["consumer_lag"] for status in seen]
    assert (lags[0], lags[1], max(lags[2:])) == (None, 0, 2)
    (bridge,) = seen[1]["workers"]
    assert (bridge["outcome"], bridge["error"], bridge["failures_in_a_row"]) == ("OK", None, 0)
    assert bridge["result"]["recorded"] == 9


def test_consumer_lag_is_unknown_after_an_outage_during_a_run(
    database_url: str, nats_server: NatsServer, ops: OpsClient
) -> None:
    """T1: the number of the beginning of the run would be wrong, and would say that NATS is up."""
    environ = configured(worker_environ(database_url, nats_server.url)) | {"NATS_CONNECT_TIMEOUT": "200ms"}
    runtime = BridgeRuntime.build(environ)
    seen: list[Any] = []
    step = runtime.worker.step

    async def observed(budget: Budget) -> bool:
        seen.append(ops.get(STATUS).json["stream"])
        if len(seen) == 2:
            nats_server.stop()
            await asyncio.sleep(0.05)  # the client notices it
        return await step(budget)

    runtime.worker.step = observed  # type: ignore[method-assign]
    runtime.run(budget_until(lambda: len(seen) > 2 and seen[-1]["state"] == "DOWN"))
    runtime.close()
    before, during, after = seen[1], seen[-1], ops.get(STATUS).json["stream"]
    assert (before["state"], before["consumer_lag"]) == ("UP", 0)
    for stream in (during, after):
        assert (stream["state"], stream["consumer_lag"], stream["measured_at"]) == ("DOWN", None, None)
        assert stream["unknown_since"] >= before["measured_at"]
    nats_server.start()


def test_report_during_a_run_does_not_hide_a_bug(environ: dict[str, str], rows: Rows) -> None:
    """T1: FAILED stays until a run ends well, because the bug may come again."""
    beat(rows, "bridge_events", outcome="FAILED", error="ZeroDivisionError, see the log", failures=2)
    runtime = BridgeRuntime.build(environ)
    seen: list[Any] = []
    end = runtime.worker.end

    async def observed() -> None:
        seen.extend(rows.execute("SELECT outcome, error, failures, result FROM worker_heartbeats").fetchall())
        await end()

    runtime.worker.end = observed  # type: ignore[method-assign]
    runtime.run(budget())
    runtime.close()
    (during,) = seen
    assert (during["outcome"], during["error"], during["failures"]) == ("FAILED", "ZeroDivisionError, see the log", 2)
    assert during["result"]["consumer_lag"] == 0
    assert rows.execute("SELECT outcome, failures FROM worker_heartbeats").fetchall() == [
        {"outcome": "OK", "failures": 0}
    ]


def test_first_heartbeat_is_written_before_the_run_ends(environ: dict[str, str], rows: Rows) -> None:
    """T1: the status of a new installation is complete after seconds. A later run reports only at its end."""
    first = observe_heartbeats(environ, rows)
    assert first[0] == []
    assert [(beat["worker"], beat["outcome"]) for beat in first[1]] == [("relay_outbox", "OK")]
    assert first[-1] != first[1]
    later = observe_heartbeats(environ, rows)
    assert later[0] == later[1] == first[-1] != later[-1]


def observe_heartbeats(environ: dict[str, str], rows: Rows) -> list[Any]:
    """Return the heartbeats before each step of a run of the relay in a new execution environment, and after it."""
    select = "SELECT worker, outcome, finished_at FROM worker_heartbeats"
    seen: list[Any] = []
    runtime = RelayRuntime.build(environ)
    step = runtime.worker.step

    async def observed(budget: Budget) -> bool:
        seen.append(rows.execute(select).fetchall())
        return await step(budget)

    runtime.worker.step = observed  # type: ignore[method-assign]
    runtime.run(budget_until(lambda: len(seen) == 3))
    runtime.close()
    return [*seen, rows.execute(select).fetchall()]


def test_heartbeat_that_cannot_be_written_has_no_other_effect(environ: dict[str, str], rows: Rows) -> None:
    """T1: the work of the run is done; the failure is only logged."""
    rows.execute("DROP TABLE worker_heartbeats")
    runtime = SweepRuntime.build(environ)
    assert runtime.run(budget())["complete"] is True
    runtime.close()


@pytest.mark.parametrize("query", [{"verbose": "1"}, {"": ""}])
def test_status_has_no_parameters(ops: OpsClient, query: dict[str, str]) -> None:
    """T1: an unknown parameter is refused, as on every route."""
    assert ops.get(STATUS, None, **query).code == "BAD_REQUEST"


def test_status_needs_the_scope_of_readers(ops: OpsClient) -> None:
    """T1: a token for changes of entitlements cannot read it."""
    assert ops.send("GET", STATUS, scopes="entitlements:write ops:write").code == "FORBIDDEN"
    assert ops.send("GET", STATUS, scopes="ops:read").status == 200
    assert ops.send("POST", STATUS).code == "METHOD_NOT_ALLOWED"


@pytest.mark.parametrize(
    ("method", "path"),
    [route.split(" ") for route in ROUTES if "/v1/ops/" in route and "/clients" not in route],
)
def test_every_route_responds_with_503_while_postgresql_is_away(method: str, path: str) -> None:
    """T1: with Retry-After, like every other route; nothing internal is in the message."""
    body = json.dumps({"actor": "ann", "reason": "r", **({"kind": "nats", "all": True} if "dead" in path else {})})
    with OpsClient("postgresql://x:x@127.0.0.1:1/x") as away:
        response = away.send(
            method,
            path,
            headers={"Idempotency-Key": "k"},
            pathParameters={
                "kind": "nats",
                "dead_letter_id": str(uuid.UUID(int=1)),
                "command_id": str(uuid.UUID(int=1)),
            },
            queryStringParameters={"purchase_id": "p"} if path.endswith("trace") else None,
            body=body if method == "POST" else None,
        )
    assert (response.status, response.code) == (503, "UNAVAILABLE")
    assert response.json["message"] == "temporarily unavailable, send the same request again"
