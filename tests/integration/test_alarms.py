"""O5, R2, A1, G7, V1: the cause of each alarm makes its function emit the metric that the alarm watches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from infra.local.deployment.conditions import ConditionEvaluator
from infra.local.deployment.template import load_template
from tests.support.concurrency import run_concurrently
from tests.support.invocations import UNTIL_IDLE, Functions
from tests.support.paths import ROOT
from tests.support.servers import newest_postgres
from tests.support.workers.bridge_stream import Stream, drain, event
from tests.support.workers.deliver_receiver import ReceivedRequest, Receiver
from tests.support.workers.relay_support import enqueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.integration.conftest import Rows

TEMPLATE = load_template()
STACK = "grantwire-test"  # the service of its metrics
# Alarms with a threshold above the few causes of this test.
MANY_CAUSES = {"CallersRefusedAlarm", "ConsumerLagAlarm", "PartitionsMissingAlarm"}
QUERY = json.loads((ROOT / "infra/events/query.json").read_text())
UNREACHABLE_DATABASE = "postgresql://x:x@127.0.0.1:1/x"
METHOD_ARN = "arn:aws:execute-api:us-east-1:123456789012:grantwire/local/GET/v1/users/u_1/entitlements"
TOKEN = f"Bearer gw_dev_0123456789ab_{'x' * 43}"


class Metric(NamedTuple):
    """The identity of a metric in CloudWatch."""

    namespace: str
    name: str
    dimensions: frozenset[tuple[str, str]]


@newest_postgres
def test_each_alarm_watches_a_metric_that_its_cause_emits(environ: dict[str, str], rows: Rows, owner_url: str) -> None:
    """An alarm on a metric that no function emits, or with other dimensions, would never fire.

    Each function runs in its own process, with the faults that its alarms watch for. The test reads the metrics from
    its output as CloudWatch does.
    """
    environ |= {
        "POWERTOOLS_SERVICE_NAME": STACK,
        "TOKEN_ENVIRONMENT": "dev",
        "NOTIFICATION_SENDER_BREAKER_FAILURES": "1",
    }
    _create_causes(environ, rows)

    with Receiver(_respond) as receiver:
        invocations: list[tuple[str, dict[str, Any], dict[str, str]]] = [
            ("relay_outbox", UNTIL_IDLE, environ),
            ("deliver_notifications", {"budget": "1500ms"}, environ | receiver.environ),
            ("record_advisories", UNTIL_IDLE, environ),
            ("bridge_events", UNTIL_IDLE, environ),
            ("bridge_events", {"budget": "1s"}, environ | {"DATABASE_URL": UNREACHABLE_DATABASE}),
            ("bridge_events", UNTIL_IDLE, environ),
            ("grant", {}, environ),
            ("sweep_retention", UNTIL_IDLE, environ),
            ("expire_entitlements", UNTIL_IDLE, environ),
            ("run_operator_commands", UNTIL_IDLE, environ),
            ("query", QUERY, environ),
            (
                "authorize_caller",
                {"authorizationToken": TOKEN, "methodArn": METHOD_ARN},
                environ | {"DATABASE_URL": UNREACHABLE_DATABASE},
            ),
            ("authorize_caller", {"authorizationToken": TOKEN, "methodArn": METHOD_ARN}, environ),
        ]
        emitted: dict[Metric, float] = {}
        for values in run_concurrently(len(invocations), lambda number: _collect_metrics(*invocations[number])):
            emitted |= values
    emitted |= _hold_back_the_change_feed(environ, rows, owner_url)

    missing = {name for name, (metric, _) in _alarms().items() if metric not in emitted}
    assert missing == set(), f"emitted were {sorted(emitted)}"
    for name, (metric, threshold) in _alarms().items():
        assert emitted[metric] > threshold or name in MANY_CAUSES, name


def _create_causes(environ: dict[str, str], rows: Rows) -> None:
    """Create the causes: failing and waiting outbox events, failing notifications, forged and invalid messages."""
    enqueue(rows, "unreadable/item1", 1)
    rows.execute("UPDATE outbox_events SET payload = '{}'")
    waiting = enqueue(rows, "waiting/item1", 1)
    rows.execute(
        "UPDATE outbox_events SET created_at = now() - interval '1 day', next_retry_at = now() + interval '1 day'"
        " WHERE event_id = %s",
        (waiting,),
    )
    for event_id, age in ((enqueue(rows, "lost/item1", 1), "1 hour"), (enqueue(rows, "lost/item1", 2), "30 days")):
        rows.execute(
            "UPDATE outbox_events SET status = 'PUBLISHED', ready = false, stream_sequence = 1000,"
            " published_at = now() - %(age)s::interval, created_at = now() - %(age)s::interval WHERE event_id = %(id)s",
            {"id": event_id, "age": age},
        )
    rows.execute(
        "UPDATE outbox_confirmation SET stream = %s, stream_created_at = '2020-01-01'",
        (environ["ENTITLEMENT_NATS_STREAM"],),
    )
    with Stream(environ) as stream:
        stream.publish(b"not an event")
        assert drain(environ)["terminated"] == 1
        stream.publish_forged(event())
        stream.publish_foreign_advisory()
    rows.execute("""
        INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload,
                                   next_retry_at, created_at)
        SELECT gen_random_uuid(), gen_random_uuid(), 'EntitlementGranted', user_id, 'item1', 1,
               jsonb_build_object('user_id', user_id), next_retry_at, created_at
          FROM (VALUES ('refused', now(), now()), ('away', now() + interval '1 us', now()),
                       ('forgotten', now() + interval '1 day', now() - interval '31 days'))
               AS n (user_id, next_retry_at, created_at)""")
    rows.execute("""
        INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail,
                                       version, status, changed_at, occurred_at)
        VALUES (gen_random_uuid(), 'c', 'GRANT', 'APPLIED', 'u', 's', '{}', 1, 'ACTIVE', now(),
                now() + interval '10 years')""")
    rows.execute("INSERT INTO user_entitlements VALUES ('u', 'never granted', 'ACTIVE', 1, now())")
    rows.execute(
        "INSERT INTO client_buckets VALUES (%s, 0, now() + interval '1 hour')",
        (QUERY["requestContext"]["authorizer"]["principalId"],),
    )
    rows.execute(
        "INSERT INTO operator_commands (command_id, kind, arguments, actor, reason, source, status, attempt_count,"
        " started_at, locked_by, locked_at, lease_until)"
        " VALUES (gen_random_uuid(), 'read_model.verify', '{}', 'a', 'r', 's', 'RUNNING', 9, now(), 'w', now(),"
        " now() - interval '1 minute')"
    )
    rows.execute(
        "INSERT INTO worker_heartbeats VALUES ('run_operator_commands', now() - interval '1 day',"
        " now() - interval '1 day', 'OK', NULL, '{}', 0, NULL)"
    )
    rows.execute(
        "INSERT INTO notification_dlq (notification_id, event_id, event_type, user_id, stock_keeping_unit, version,"
        " payload, attempt_count) VALUES (gen_random_uuid(), gen_random_uuid(), 'e', 'u', 's', 1, '{}', 1)"
    )
    enqueue(rows, "stuck/item1", 1)
    rows.execute(
        "UPDATE outbox_events SET ready = false, next_retry_at = now() + interval '1 day'"
        " WHERE aggregate_key = 'stuck/item1'"
    )
    # The version that its end needs is already taken.
    rows.execute("""
        INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at, expires_at, purchase_id)
        VALUES ('ended', 'item1', 'ACTIVE', 1, now(), now() - interval '1 minute', 'p')""")
    rows.execute(
        "UPDATE outbox_events SET next_retry_at = now() + interval '1 day' WHERE event_id = %s",
        (enqueue(rows, "ended/item1", 2),),
    )


def _hold_back_the_change_feed(environ: Mapping[str, str], rows: Rows, owner_url: str) -> dict[Metric, float]:
    """Return the lag of the change feed in a sample that is taken while a transaction holds back a change."""
    with psycopg.connect(owner_url) as holder:
        holder.execute("SELECT pg_current_xact_id()")
        rows.execute("""
            INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit,
                                           detail, version, status, changed_at, occurred_at)
            SELECT gen_random_uuid(), 'c', 'GRANT', 'APPLIED', 'u', 's', '{}', 1, 'ACTIVE', now(),
                   now() - interval '2 min'""")
        rows.execute("DELETE FROM status_samples")  # so that the next one is due
        collected = _collect_metrics("run_operator_commands", UNTIL_IDLE, environ)
    return {metric: value for metric, value in collected.items() if metric.name == "ChangeFeedLag"}


def _respond(received: ReceivedRequest) -> int:
    return 400 if received.body["user_id"] == "refused" else 503


def _collect_metrics(name: str, event: dict[str, Any], environ: Mapping[str, str]) -> dict[Metric, float]:
    """Return the sum of each metric of one invocation, with the variables that the template sets for the function."""
    with Functions({**_literal_variables(name), **environ}) as functions:
        if name == "authorize_caller" and environ["DATABASE_URL"] == UNREACHABLE_DATABASE:
            functions.invoke_expecting_error(name, event)
        else:
            functions.invoke(name, event)
    sums: dict[Metric, float] = {}
    for metric, value in _metrics(functions.lines):
        sums[metric] = sums.get(metric, 0) + value
    return sums


def _literal_variables(name: str) -> dict[str, str]:
    """Return the variables whose values are literals in the template; the test sets the others."""
    (function,) = [
        resource["Properties"]
        for resource in TEMPLATE["Resources"].values()
        if resource["Type"] == "AWS::Serverless::Function"
        and resource["Properties"]["CodeUri"].strip("/") == f"functions/{name}"
    ]
    variables: dict[str, Any] = {}
    for properties in (TEMPLATE.get("Globals", {}).get("Function", {}), function):
        variables |= properties.get("Environment", {}).get("Variables", {})
    return {variable: value for variable, value in variables.items() if isinstance(value, str)}


def _metrics(lines: list[dict[str, Any]]) -> Iterator[tuple[Metric, float]]:
    """Yield every value in embedded metric format, once for each set of dimensions."""
    for line in lines:
        for directive in line.get("_aws", {}).get("CloudWatchMetrics", []):
            for names in directive["Dimensions"]:
                dimensions = frozenset((name, line[name]) for name in names)
                for metric in directive["Metrics"]:
                    value = line[metric["Name"]]
                    total = sum(value) if isinstance(value, list) else value
                    yield Metric(directive["Namespace"], metric["Name"], dimensions), total


def _alarms() -> dict[str, tuple[Metric, float]]:
    """Return the metric and the threshold of each alarm."""
    alarms = {}
    for name, resource in TEMPLATE["Resources"].items():
        if resource["Type"] == "AWS::CloudWatch::Alarm" and resource["Properties"].get("Namespace") == "Grantwire":
            alarm = resource["Properties"]
            assert alarm["ComparisonOperator"] == "GreaterThanThreshold"
            dimensions = frozenset((item["Name"], _of_stack(item["Value"])) for item in alarm["Dimensions"])
            alarms[name] = (
                Metric(alarm["Namespace"], alarm["MetricName"], dimensions),
                _parse_threshold(alarm["Threshold"]),
            )
    assert alarms
    return alarms


def _of_stack(value: Any) -> str:
    """Return the value of a dimension: a literal, or the name of the stack."""
    return STACK if value == {"Ref": "AWS::StackName"} else str(value)


def _parse_threshold(threshold: Any) -> float:
    """Return a threshold with the defaults of the parameters."""
    return float(ConditionEvaluator(TEMPLATE, {}).text(threshold) or "nan")
