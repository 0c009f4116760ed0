"""O5, R2, A1, V1: what each alarm of the template is for makes its function emit the metric that the alarm watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from infra.local.deployment.template import load_template
from tests.support.concurrency import at_once
from tests.support.invocations import UNTIL_IDLE, Functions
from tests.support.workers.bridge_stream import Stream, drain
from tests.support.workers.deliver_receiver import Received, Receiver
from tests.support.workers.relay_support import enqueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.integration.conftest import Rows

TEMPLATE = load_template()
NOWHERE = "postgresql://x:x@127.0.0.1:1/x"
METHOD = "arn:aws:execute-api:us-east-1:123456789012:grantwire/local/GET/v1/users/u_1/entitlements"
TOKEN = f"Bearer gw_dev_0123456789ab_{'x' * 43}"


class Metric(NamedTuple):
    """What CloudWatch tells one metric from another by."""

    namespace: str
    name: str
    dimensions: frozenset[tuple[str, str]]


def test_what_an_alarm_is_for_makes_it_ring(environ: dict[str, str], rows: Rows) -> None:
    """An alarm on a metric that nobody emits, or that has other dimensions, never rings.

    Each function works in a process of its own, in the trouble that its alarms are for; its output is read as
    CloudWatch reads it.
    """
    environ |= {"TOKEN_ENVIRONMENT": "dev", "NOTIFICATION_SENDER_BREAKER_FAILURES": "1"}
    _make_trouble(environ, rows)

    with Receiver(_answer) as receiver:
        sender = {"NOTIFICATION_SENDER": "webhook", "NOTIFICATION_WEBHOOK_URL": receiver.url}
        invocations: list[tuple[str, dict[str, Any], dict[str, str]]] = [
            ("relay_outbox", UNTIL_IDLE, environ),
            ("deliver_notifications", {"budget": "1500ms"}, environ | sender),
            ("record_advisories", UNTIL_IDLE, environ),
            ("bridge_events", {"budget": "1s"}, environ | {"DATABASE_URL": NOWHERE}),
            ("sweep_retention", UNTIL_IDLE, environ),
            (
                "authorize_caller",
                {"authorizationToken": TOKEN, "methodArn": METHOD},
                environ | {"DATABASE_URL": NOWHERE},
            ),
        ]
        emitted: dict[Metric, float] = {}
        for values in at_once(len(invocations), lambda number: _emitted(*invocations[number])):
            emitted |= values

    silent = {name for name, (metric, _) in _alarms().items() if metric not in emitted}
    assert silent == set(), f"emitted were {sorted(emitted)}"
    for name, (metric, threshold) in _alarms().items():
        assert emitted[metric] > threshold, name


def _make_trouble(environ: dict[str, str], rows: Rows) -> None:
    """One of each: an event that cannot be encoded, one that waits, messages that are refused, and what must not be."""
    enqueue(rows, "unreadable/item1", 1)
    rows.execute("UPDATE outbox_events SET payload = '{}'")
    waiting = enqueue(rows, "waiting/item1", 1)
    rows.execute(
        "UPDATE outbox_events SET created_at = now() - interval '1 day', next_retry_at = now() + interval '1 day'"
        " WHERE event_id = %s",
        (waiting,),
    )
    with Stream(environ) as stream:
        stream.publish(b"poison")
        assert drain(environ)["terminated"] == 1
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
                                       occurred_at)
        VALUES (gen_random_uuid(), 'c', 'GRANT', 'APPLIED', 'u', 's', '{}', now() + interval '10 years')""")
    enqueue(rows, "stuck/item1", 1)
    rows.execute(
        "UPDATE outbox_events SET ready = false, next_retry_at = now() + interval '1 day'"
        " WHERE aggregate_key = 'stuck/item1'"
    )


def _answer(received: Received) -> int:
    return 400 if received.body["user_id"] == "refused" else 503


def _emitted(name: str, event: dict[str, Any], environ: Mapping[str, str]) -> dict[Metric, float]:
    """The sum of each metric that one invocation emits, with the variables that the template gives the function."""
    with Functions({**_literals(name), **environ}) as functions:
        if name == "authorize_caller":
            functions.invoke_expecting_error(name, event)
        else:
            functions.invoke(name, event)
    found: dict[Metric, float] = {}
    for metric, value in _metrics(functions.lines):
        found[metric] = found.get(metric, 0) + value
    return found


def _literals(name: str) -> dict[str, str]:
    """The variables whose values stand in the template; the test's own replace those that do not."""
    (function,) = [
        one["Properties"]
        for one in TEMPLATE["Resources"].values()
        if one["Type"] == "AWS::Serverless::Function" and one["Properties"]["CodeUri"].strip("/") == f"functions/{name}"
    ]
    given: dict[str, Any] = {}
    for properties in (TEMPLATE.get("Globals", {}).get("Function", {}), function):
        given |= properties.get("Environment", {}).get("Variables", {})
    return {variable: value for variable, value in given.items() if isinstance(value, str)}


def _metrics(lines: list[dict[str, Any]]) -> Iterator[tuple[Metric, float]]:
    """Every value in embedded metric format, once for each set of dimensions."""
    for line in lines:
        for directive in line.get("_aws", {}).get("CloudWatchMetrics", []):
            for names in directive["Dimensions"]:
                dimensions = frozenset((name, line[name]) for name in names)
                for one in directive["Metrics"]:
                    value = line[one["Name"]]
                    total = sum(value) if isinstance(value, list) else value
                    yield Metric(directive["Namespace"], one["Name"], dimensions), total


def _alarms() -> dict[str, tuple[Metric, float]]:
    """What each alarm watches, and the value above which it rings."""
    found = {}
    for name, one in TEMPLATE["Resources"].items():
        if one["Type"] == "AWS::CloudWatch::Alarm":
            alarm = one["Properties"]
            assert alarm["ComparisonOperator"] == "GreaterThanThreshold"
            dimensions = frozenset((one["Name"], one["Value"]) for one in alarm["Dimensions"])
            found[name] = Metric(alarm["Namespace"], alarm["MetricName"], dimensions), _number(alarm["Threshold"])
    assert found
    return found


def _number(threshold: Any) -> float:
    """A number, or a parameter's default."""
    return float(TEMPLATE["Parameters"][threshold["Ref"]]["Default"] if isinstance(threshold, dict) else threshold)
