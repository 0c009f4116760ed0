"""T2: a trace by any id shows the whole path of an entitlement's change, in order, with times."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.wiring.workers.bridge_events import BridgeRuntime
from grantwire.wiring.workers.deliver_notifications import DeliveryRuntime
from grantwire.wiring.workers.relay_outbox import RelayRuntime
from grantwire.wiring.workers.run_operator_commands import OperatorCommandsRuntime
from tests.support.client import BATCHES, CALLER, CHANGE, GRANTS, REVOKES, event, item
from tests.support.dead_letters import budget
from tests.support.operations import DISCARD, OPERATOR, REDRIVE, OpsClient
from tests.support.servers import newest_postgres
from tests.support.times import in_hours, pass_time
from tests.support.workers.deliver_receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows
    from tests.support.client import Client, Response

TRACE = "/v1/ops/trace"
W3C = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{W3C}-b7ad6b7169203331-01"
XRAY = "1-0af76519-16cd43dd8448eb211c80319c"
ENTITLEMENT = {"user_id": "u_123", "stock_keeping_unit": "item1"}


@pytest.fixture
def ops(database_url: str) -> Iterator[OpsClient]:
    """Caller of the operations API."""
    with OpsClient(database_url) as client:
        yield client


def run(environ: dict[str, str], *runtimes: Any) -> None:
    """Run workers until they are idle."""
    for runtime_class in runtimes:
        runtime = runtime_class.build(environ)
        runtime.run(budget())
        runtime.close()


def grant(client: Client, key: str = "k1", traceparent: str = TRACEPARENT, **fields: Any) -> Response:
    """Grant with a traceparent, from an address."""
    headers = {"Idempotency-Key": key, "traceparent": traceparent}
    context = {"requestId": "r", "authorizer": CALLER, "identity": {"sourceIp": "203.0.113.9"}}
    return client.send(event("POST", GRANTS, headers=headers, body=json.dumps(CHANGE | fields), requestContext=context))


def stages(trace: Any) -> list[str]:
    """Return the stages of the timeline."""
    return [entry["stage"] for entry in trace["timeline"]]


def test_trace_shows_every_stage_in_order(environ: dict[str, str], ops: OpsClient, client: Client, rows: Rows) -> None:
    """T2: by each id; the trace id of the request goes through outbox, stream, notification."""
    grant(client)
    run(environ, RelayRuntime, BridgeRuntime, DeliveryRuntime)
    (notification,) = rows.execute("SELECT notification_id, event_id, trace_id FROM notifications").fetchall()
    assert notification["trace_id"] == XRAY
    ways = [
        ENTITLEMENT,
        {"purchase_id": "p_456"},
        {"idempotency_key": "k1"},
        {"event_id": str(notification["event_id"])},
        {"notification_id": str(notification["notification_id"])},
        {"trace_id": XRAY},
        {"correlation_id": "r"},
        {"trace_id": W3C},
        {"trace_id": TRACEPARENT},
        {"trace_id": f"Root={XRAY};Parent=53995c3f42cd8ad8;Sampled=1"},
    ]
    traces = [ops.get(TRACE, **way).json for way in ways]
    fingerprint = traces[2]["query"]["key_fingerprint"]
    traces.append(ops.get(TRACE, key_fingerprint=fingerprint).json)
    for trace in traces:
        assert stages(trace) == [
            *("request", "change", "outbox", "published", "inbox", "read_model", "notification", "sent"),
        ]
        (change,) = trace["changes"]
        assert (change["state"], change["event_id"]) == ("SENT", str(notification["event_id"]))
        assert (change["trace_id"], change["purchase_id"], change["version"]) == (XRAY, "p_456", 1)
        assert (trace["removed"], trace["truncated"]) == ([], False)
    assert "k1" not in json.dumps(traces[2])
    timeline = traces[0]["timeline"]
    offsets = [entry["offset_ms"] for entry in timeline]
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    by_stage = {entry["stage"]: entry["detail"] for entry in timeline}
    assert by_stage["request"]["status_code"] == 200
    assert json.loads(by_stage["request"]["body"])["version"] == 1
    assert (by_stage["change"]["caller"], by_stage["change"]["source_address"]) == ("tests", "203.0.113.9")
    assert by_stage["outbox"]["status"] == "PUBLISHED"
    assert by_stage["published"] == {"stream_sequence": 1}
    assert by_stage["notification"]["attempts"] == 0
    summaries = {entry["stage"]: entry["summary"] for entry in timeline}
    assert summaries["published"] == "NATS has stored the event as message 1 of the stream"
    assert summaries["sent"] == "the receiver has accepted the notification: written to the log"


def test_stored_response_is_that_of_the_caller_and_the_route(ops: OpsClient, client: Client, rows: Rows) -> None:
    """T2, I7: others may use the same key at the same time; without the own response, none of theirs is shown."""

    def responses() -> dict[tuple[str, str], int]:
        timeline = ops.get(TRACE, idempotency_key="k").json["timeline"]
        callers = {entry["event_id"]: entry["detail"]["caller"] for entry in timeline if entry["stage"] == "change"}
        return {
            (callers[entry["event_id"]], entry["detail"]["route"]): json.loads(entry["detail"]["body"])["version"]
            for entry in timeline
            if entry["stage"] == "request"
        }

    client.change(GRANTS, "k", caller="shop")
    client.change(REVOKES, "k", caller="shop")
    client.change(GRANTS, "k", caller="store")
    stored = {("shop", f"POST {GRANTS}"): 1, ("shop", f"POST {REVOKES}"): 2, ("store", f"POST {GRANTS}"): 3}
    assert responses() == stored
    for caller, route in list(stored):
        rows.execute("DELETE FROM idempotency_keys WHERE (caller, route) = (%s, %s)", (caller, route))
        del stored[caller, route]
        assert responses() == stored


def test_key_conflict_has_no_stored_response(ops: OpsClient, client: Client) -> None:
    """T2, I3: that of the first request with the key belongs to another entitlement; it is not removed either."""
    grant(client, "k1")
    assert grant(client, "k1", user_id="other").code == "IDEMPOTENCY_KEY_CONFLICT"
    trace = ops.get(TRACE, user_id="other", stock_keeping_unit="item1").json
    assert (stages(trace), trace["removed"]) == (["change"], [])


def send(client: Client, path: str, request_id: object, body: object, key: str = "-") -> Response:
    """POST with a request id of API Gateway."""
    context = {"requestId": request_id, "authorizer": CALLER}
    headers = {} if path == BATCHES else {"Idempotency-Key": key}
    return client.send(event("POST", path, headers=headers, body=json.dumps(body), requestContext=context))


def outcomes(ops: OpsClient, correlation_id: str) -> list[tuple[str, str, str]]:
    """Return operation, outcome and correlation id of the changes that a correlation id finds."""
    trace = ops.get(TRACE, correlation_id=correlation_id).json
    assert trace["query"] == {"correlation_id": correlation_id}
    return [(change["operation"], change["outcome"], change["correlation_id"]) for change in trace["changes"]]


def test_correlation_id_finds_applied_and_refused_operations(ops: OpsClient, client: Client) -> None:
    """T2: the id that log lines and internal errors have; a replay leaves the id of the first request."""
    assert send(client, GRANTS, "r1", CHANGE, "k1").status == 200
    assert send(client, GRANTS, "r2", CHANGE, "k2").code == "ENTITLEMENT_STATE_CONFLICT"
    assert send(client, REVOKES, "r3", CHANGE, "k3").status == 200
    assert send(client, GRANTS, "r4", CHANGE | {"user_id": "other"}, "k1").code == "IDEMPOTENCY_KEY_CONFLICT"
    assert send(client, GRANTS, "r5", CHANGE, "k1").replayed
    assert outcomes(ops, "r1") == [("GRANT", "APPLIED", "r1")]
    assert outcomes(ops, "r2") == [("GRANT", "ENTITLEMENT_STATE_CONFLICT", "r2")]
    assert outcomes(ops, "r3") == [("REVOKE", "APPLIED", "r3")]
    assert outcomes(ops, "r4") == [("GRANT", "IDEMPOTENCY_KEY_CONFLICT", "r4")]
    assert outcomes(ops, "r5") == []


def test_correlation_id_of_a_batch_finds_all_its_items(ops: OpsClient, client: Client) -> None:
    """T2, K6: applied and refused ones."""
    items = [item("k1"), item("k2"), item("k3", "revoke")]
    assert send(client, BATCHES, "r1", {"items": items}).status == 200
    assert outcomes(ops, "r1") == [
        ("GRANT", "APPLIED", "r1"),
        ("GRANT", "ENTITLEMENT_STATE_CONFLICT", "r1"),
        ("REVOKE", "APPLIED", "r1"),
    ]


def test_event_of_time_has_no_correlation_id(ops: OpsClient, client: Client, rows: Rows) -> None:
    """T2, K4: also if a request meets the end and records it; no request made it."""
    send(client, GRANTS, "r1", CHANGE | {"expires_at": in_hours(1)}, "k1")
    pass_time(rows, 2)
    assert send(client, GRANTS, "r2", CHANGE, "k2").status == 200
    assert outcomes(ops, "r2") == [("GRANT", "APPLIED", "r2")]
    changes = ops.get(TRACE, **ENTITLEMENT).json["changes"]
    by_operation = {change["operation"]: change["correlation_id"] for change in changes if change["version"] > 1}
    assert by_operation == {"EXPIRE": None, "GRANT": "r2"}


@pytest.mark.parametrize("path", [GRANTS, BATCHES])
@pytest.mark.parametrize("request_id", ["r" * 129, "r\n", "r\x00", "\ud800", "", None, 7], ids=ascii)
def test_unusable_request_id_is_not_kept(client: Client, rows: Rows, path: str, request_id: object) -> None:
    """T2, G8: the change is made; its correlation id is NULL."""
    body = CHANGE if path == GRANTS else {"items": [item("k1")]}
    assert send(client, path, request_id, body, "k1").status == 200
    (audit,) = rows.execute("SELECT correlation_id FROM entitlement_audit").fetchall()
    assert audit["correlation_id"] is None


def test_longest_correlation_id_is_kept(ops: OpsClient, client: Client) -> None:
    """T2: what the audit keeps, a trace can ask for."""
    send(client, GRANTS, "r" * 128, CHANGE, "k1")
    assert outcomes(ops, "r" * 128) == [("GRANT", "APPLIED", "r" * 128)]


def test_trace_of_other_objects_is_empty(ops: OpsClient, client: Client) -> None:
    """T2: nothing is known, which is no error."""
    grant(client)
    for way in (
        {"user_id": "u_123", "stock_keeping_unit": "other"},
        {"purchase_id": "p_other"},
        {"idempotency_key": "other"},
        {"key_fingerprint": "0" * 12},
        {"event_id": str(uuid.UUID(int=1))},
        {"event_id": "019b9c5d-3f40-7abc-8def-0123456789ab"},
        {"notification_id": str(uuid.UUID(int=1))},
        {"trace_id": "1" * 32},
        {"correlation_id": "R"},
    ):
        trace = ops.get(TRACE, **way).json
        assert (trace["changes"], trace["timeline"], trace["removed"]) == ([], [], [])


@newest_postgres
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({}, "ask in exactly one way: user_id with stock_keeping_unit, or one of purchase_id"),
        ({"user_id": "u"}, "ask in exactly one way"),
        ({"stock_keeping_unit": "s"}, "ask in exactly one way"),
        ({"user_id": "u", "purchase_id": "p"}, "ask in exactly one way"),
        ({**ENTITLEMENT, "purchase_id": "p"}, "ask in exactly one way"),
        ({"purchase_id": "p", "event_id": str(uuid.UUID(int=1))}, "ask in exactly one way"),
        ({"purchase_id": ""}, "purchase_id must not be empty"),
        ({"purchase_id": "p" * 129}, "purchase_id must have at most 128 characters"),
        ({"correlation_id": "r", "trace_id": XRAY}, "ask in exactly one way"),
        ({"correlation_id": ""}, "correlation_id must not be empty"),
        ({"correlation_id": "r" * 129}, "correlation_id must have at most 128 characters"),
        ({"correlation_id": "r\x00"}, "correlation_id must not contain control"),
        ({"event_id": "1"}, "event_id must be a UUID"),
        ({"notification_id": "x"}, "notification_id must be a UUID"),
        ({"trace_id": "x"}, "trace_id must be a trace id of X-Ray"),
        ({"trace_id": f"00-{'0' * 32}-b7ad6b7169203331-01"}, "trace_id must be a trace id of X-Ray"),
        ({"key_fingerprint": "ABCDEF012345"}, "key_fingerprint must have 12 hexadecimal digits"),
        ({"idempotency_key": "käse"}, "Idempotency-Key must contain only printable ASCII"),
        ({"order_id": "1"}, "unknown query parameter 'order_id'"),
    ],
)
def test_invalid_question_is_refused(ops: OpsClient, query: dict[str, str], message: str) -> None:
    """T2: the response says how to ask."""
    response = ops.get(TRACE, **query)
    assert (response.status, response.code) == (400, "BAD_REQUEST")
    assert message in response.json["message"]


def test_state_says_how_far_a_change_has_come(
    environ: dict[str, str], ops: OpsClient, client: Client, rows: Rows
) -> None:
    """T2: from the outbox to the receiver, and a refusal with its reason."""

    def states() -> list[str]:
        return [change["state"] for change in ops.get(TRACE, **ENTITLEMENT).json["changes"]]

    grant(client)
    assert states() == ["PENDING"]
    run(environ, RelayRuntime)
    assert states() == ["PUBLISHED"]
    run(environ, BridgeRuntime)
    assert states() == ["RECORDED"]
    run(environ, DeliveryRuntime)
    assert states() == ["SENT"]
    client.grant("k2")
    assert states() == ["SENT", "REFUSED"]
    refused = ops.get(TRACE, idempotency_key="k2").json["timeline"]
    assert [entry["summary"] for entry in refused] == [
        "POST /v1/entitlements/grants got the response 409",
        "GRANT refused: already ACTIVE",
    ]
    client.revoke("k3")
    rows.execute("UPDATE outbox_events SET status = 'FAILED', ready = false, last_error = 'broken' WHERE ready")
    assert states() == ["SENT", "REFUSED", "DEAD_LETTER"]
    rows.execute("SELECT outbox_discard(ARRAY(SELECT event_id FROM outbox_events WHERE failed_at IS NOT NULL))")
    assert states() == ["SENT", "REFUSED", "DISCARDED"]


def test_dead_letter_redrive_and_operator_are_in_the_trace(
    environ: dict[str, str], ops: OpsClient, client: Client
) -> None:
    """T2: a receiver that fails, the repair, and who did it and why."""
    grant(client)
    with Receiver(lambda _: 400) as receiver:
        webhook = environ | receiver.environ
        run(webhook, RelayRuntime, BridgeRuntime, DeliveryRuntime)
        broken = ops.get(TRACE, purchase_id="p_456").json
        assert broken["changes"][0]["state"] == "DEAD_LETTER"
        failed = "notification is FAILED, 1 failed attempt: receiver responded with status 400"
        assert [entry["summary"] for entry in broken["timeline"] if entry["stage"] == "notification"] == [failed]
        (dead,) = (entry for entry in broken["timeline"] if entry["stage"] == "dead_letter")
        assert dead["detail"]["error"] == "receiver responded with status 400"
        body = {"kind": "notification", "ids": [dead["detail"]["dead_letter_id"]], **OPERATOR}
        assert ops.post(REDRIVE, "r", body).status == 202
        run(environ, OperatorCommandsRuntime)
        receiver.respond = lambda _: 204
        run(webhook, DeliveryRuntime)
        assert {request.headers["traceparent"].split("-")[1] for request in receiver.requests} == {W3C}
    repaired = ops.get(TRACE, purchase_id="p_456").json
    assert repaired["changes"][0]["state"] == "SENT"
    assert stages(repaired)[stages(repaired).index("notification") :] == [
        *("notification", "attempt", "dead_letter", "closed", "operator_action", "sent"),
    ]
    summaries = {entry["stage"]: entry["summary"] for entry in repaired["timeline"]}
    assert summaries["attempt"] == "not sent: receiver responded with status 400"
    assert summaries["sent"] == "the receiver has accepted the notification: receiver responded with status 204"
    (action,) = (entry for entry in repaired["timeline"] if entry["stage"] == "operator_action")
    assert action["summary"] == "ann: redrive, because: repaired"


def test_stages_that_retention_removed_are_named(
    environ: dict[str, str], ops: OpsClient, client: Client, rows: Rows
) -> None:
    """T2: the audit still knows the change."""
    grant(client)
    run(environ, RelayRuntime, BridgeRuntime, DeliveryRuntime)
    for table in ("outbox_events", "idempotency_keys", "notifications"):
        rows.execute(f"DELETE FROM {table}")  # noqa: S608 - names of this test
    trace = ops.get(TRACE, purchase_id="p_456").json
    assert [entry["stage"] for entry in trace["removed"]] == ["request", "outbox", "notification"]
    assert trace["changes"][0]["state"] == "UNKNOWN"
    assert stages(trace) == ["change", "inbox", "read_model"]
    rows.execute("DELETE FROM processed_events")
    trace = ops.get(TRACE, event_id=trace["changes"][0]["event_id"]).json
    assert [entry["stage"] for entry in trace["removed"]] == ["request", "outbox", "inbox"]


@pytest.mark.parametrize("number", [3, 4])
def test_only_the_newest_changes_are_traced(
    ops: OpsClient, client: Client, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """T2: the response says that there are more, and only then."""
    monkeypatch.setattr("grantwire.operations.traces._MAX_CHANGES", 3)
    for change in range(number):
        (client.grant if change % 2 == 0 else client.revoke)(f"k{change}")
    trace = ops.get(TRACE, **ENTITLEMENT).json
    assert [change["version"] for change in trace["changes"]] == list(range(number - 2, number + 1))
    assert trace["truncated"] == (number > 3)


def test_longest_timeline_is_complete(ops: OpsClient, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """T2: the response says that there are more entries, and only then."""
    grant(client)
    complete = ops.get(TRACE, **ENTITLEMENT).json
    for limit in (len(complete["timeline"]), len(complete["timeline"]) - 1):
        monkeypatch.setattr("grantwire.operations.traces._MAX_ENTRIES", limit)
        trace = ops.get(TRACE, **ENTITLEMENT).json
        assert trace["timeline"] == complete["timeline"][:limit]
        assert trace["truncated"] == (limit < len(complete["timeline"]))


def test_dead_letters_and_actions_are_limited(
    ops: OpsClient, client: Client, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2: the response says that there are more than the oldest dead letters or the newest actions, and only then."""

    def shown() -> tuple[int, int, bool]:
        trace = ops.get(TRACE, **ENTITLEMENT).json
        return (*(stages(trace).count(stage) for stage in ("dead_letter", "operator_action")), trace["truncated"])

    def add_dead_letter(number: int) -> None:
        rows.execute(
            "INSERT INTO notification_nats_dlq"
            " (dead_letter_id, stream, consumer, stream_seq, kind, deliveries, event_id, advised_at)"
            " VALUES (%s, 's', 'c', %s, 'MSG_TERMINATED', 1, %s, now())",
            (uuid.UUID(int=number), number, event_id),
        )

    def add_action(number: int) -> None:
        body = {"kind": "nats", "ids": [str(uuid.UUID(int=1))], "dry_run": True, **OPERATOR}
        assert ops.post(DISCARD, f"d{number}", body).status == 200

    monkeypatch.setattr("grantwire.operations.traces._MAX_RELATED", 2)
    grant(client)
    event_id = ops.get(TRACE, **ENTITLEMENT).json["changes"][0]["event_id"]
    for number in (1, 2):
        add_dead_letter(number)
        add_action(number)
    assert shown() == (2, 2, False)
    add_dead_letter(3)
    assert shown() == (2, 2, True)
    (read,) = rows.execute("SELECT trace_stages(ARRAY[%s]::uuid[], '[]', '1 day', 2) AS stages", (event_id,)).fetchall()
    assert len(read["stages"]["dead_messages"]) == 2
    rows.execute("DELETE FROM notification_nats_dlq WHERE stream_seq = 3")
    assert shown() == (2, 2, False)
    add_action(3)
    assert shown() == (2, 2, True)


def test_functions_read_the_audit_only_through_the_bounded_function(database_url: str, client: Client) -> None:
    """T2, A1: the role cannot read the audit itself, and the function returns one object's rows, at most 100."""
    grant(client)
    with psycopg.connect(database_url, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM entitlement_audit")
        for arguments in (
            "NULL, NULL, NULL, NULL, NULL, NULL, 10, NULL",
            "'u_123', NULL, NULL, NULL, NULL, NULL, 10, NULL",
            "'u_123', 'item1', 'p_456', NULL, NULL, NULL, 10, NULL",
            "'u_123', 'item1', NULL, NULL, NULL, NULL, 101, NULL",
            "NULL, NULL, 'p_456', NULL, NULL, NULL, 10, 'r'",
            "NULL, NULL, NULL, NULL, NULL, NULL, 101, 'r'",
        ):
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                connection.execute(f"SELECT trace_changes({arguments})")
