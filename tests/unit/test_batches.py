"""K6: the response to a batch, its request line, and any input to the route."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from functions.change_batch.handler import handler as change_batch
from grantwire.api import request as request_module
from grantwire.api.request import Request
from grantwire.api.routes.batches import count_items
from grantwire.entitlements.batch_store import EntitlementBatches
from grantwire.entitlements.batches import MAX_BATCH_BYTES, BatchCommand, BatchItem, BatchResult
from grantwire.errors import BadRequestError, KeyConflictError, NotAppliedError, RequestInProgressError
from grantwire.idempotency import StoredResponse
from grantwire.wiring.routes.change_batch import BatchRuntime
from tests.support.client import BATCHES, CHANGE, event, item
from tests.support.contract import assert_matches_contract, document, schema_validator
from tests.unit.test_hostile_requests import ANY_TEXT, JSON

if TYPE_CHECKING:
    from grantwire.entitlements.batches import ItemResult

HYPOTHESIS_SETTINGS = settings(deadline=timedelta(seconds=5), max_examples=100)
CHANGED = (
    '{"user_id":"u_123","stock_keeping_unit":"item1","status":"ACTIVE","version":1,'
    '"updated_at":"2026-01-08T07:10:00.000001Z"}'
)
APPLIED = StoredResponse(200, CHANGED)
REPLAYED = StoredResponse(200, CHANGED, "REPLAYED")
STATE_CONFLICT = '{"code":"ENTITLEMENT_STATE_CONFLICT","message":"not granted"}'
REFUSED = StoredResponse(409, STATE_CONFLICT, "ENTITLEMENT_STATE_CONFLICT")
REPLAYED_REFUSAL = StoredResponse(409, STATE_CONFLICT, "REPLAYED")
OTHERS = NotAppliedError("items[1] was refused, nothing was applied")


class FakeBatches(EntitlementBatches):
    """A replacement of the database that records all batches, and returns `result` or a success for each item."""

    def __init__(self, result: BatchResult | None = None) -> None:
        self.executed: list[BatchCommand] = []
        self._result = result

    def execute(
        self,
        batch: BatchCommand,
        caller: str,
        trace_id: str,
        source_address: str | None = None,  # noqa: ARG002 - the signature of EntitlementBatches.execute
        correlation_id: str | None = None,  # noqa: ARG002
    ) -> BatchResult:
        """Record the batch."""
        assert (caller, bool(trace_id)) == ("tests", True)
        self.executed.append(batch)
        return self._result or BatchResult(
            [APPLIED if isinstance(each, BatchItem) else each for each in batch.items],
        )


def _execute(result: BatchResult, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the response and the request line of a batch with this result."""
    handler = change_batch.with_runtime(BatchRuntime(FakeBatches(result)))
    response = handler(event("POST", BATCHES, body=json.dumps({"items": [item("k")]})), None)
    assert_matches_contract("POST", BATCHES, response["statusCode"], response["headers"], response["body"])
    return response, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_body_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """K6, G6: the limiter counts the items, and the route executes them."""
    limiter, parsed = Mock(), Mock(wraps=request_module._decode_json)  # noqa: SLF001 - parsing has no other trace
    monkeypatch.setattr(request_module, "_decode_json", parsed)
    sent = event("POST", BATCHES, body=json.dumps({"items": [item("k"), item("l")]}))
    assert change_batch.with_runtime(BatchRuntime(FakeBatches(), limiter))(sent, None)["statusCode"] == 200
    limiter.take.assert_called_once_with("tests", 2)
    assert parsed.call_count == 1


@pytest.mark.parametrize(
    ("results", "outcome", "counts"),
    [
        ([APPLIED, APPLIED], "APPLIED", [2, 0, 0]),
        ([APPLIED, REPLAYED], "APPLIED", [1, 1, 0]),
        ([REPLAYED, REPLAYED_REFUSAL], "REPLAYED", [0, 2, 0]),
        ([APPLIED, REPLAYED, REFUSED, BadRequestError("x")], "PARTIAL", [1, 1, 2]),
        ([KeyConflictError("used"), RequestInProgressError("running")], "PARTIAL", [0, 0, 2]),
    ],
)
def test_request_line_has_the_outcome_and_counts_of_a_batch(
    results: list[ItemResult], outcome: str, counts: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """K6: applied, replayed and refused items, as metrics of the route; it stays one line."""
    response, line = _execute(BatchResult(results), capsys)
    assert (response["statusCode"], line["outcome"], line["route"]) == (200, outcome, f"POST {BATCHES}")
    names = ["ItemsApplied", "ItemsReplayed", "ItemsRefused"]
    assert [line[name] for name in names] == [[float(count)] for count in counts]
    (metrics,) = line["_aws"]["CloudWatchMetrics"]
    assert [metric["Name"] for metric in metrics["Metrics"]] == ["Requests", "Latency", *names]


def test_request_line_of_a_batch_that_was_not_applied(capsys: pytest.CaptureFixture[str]) -> None:
    """K6: all its items count as refused."""
    response, line = _execute(BatchResult([OTHERS, REFUSED, OTHERS], OTHERS), capsys)
    assert (response["statusCode"], line["outcome"], line["status_code"]) == (409, "NOT_APPLIED", 409)
    assert [line[f"Items{kind}"] for kind in ("Applied", "Replayed", "Refused")] == [[0.0], [0.0], [3.0]]
    assert "Retry-After" not in response["headers"]


def test_bodies_are_part_of_the_response_byte_for_byte(capsys: pytest.CaptureFixture[str]) -> None:
    """K6, I1: also a body with escapes that Python would write differently."""
    body = CHANGED.replace("u_123", "é\\u00e9\\/")
    response, _ = _execute(BatchResult([StoredResponse(200, body, "REPLAYED"), REFUSED]), capsys)
    assert response["body"] == (
        f'{{"results":[{{"status_code":200,"replayed":true,"response":{body}}},'
        f'{{"status_code":409,"replayed":false,"response":{STATE_CONFLICT}}}]}}'
    )


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ({"items": [item("k")] * 100}, 100),
        ({"items": [{}, {}, {}]}, 3),
        ({"items": [item("k")] * 101}, 1),
        ({"items": [], "atomic": True}, 1),
        ({"items": [item("k")] * 5, "atomic": "yes"}, 1),
        ([], 1),
    ],
)
def test_batch_counts_as_many_requests_as_it_has_items(body: object, count: int) -> None:
    """G6: a batch that is refused as a whole counts as one."""
    assert count_items(Request.from_api_gateway(event("POST", BATCHES, body=json.dumps(body)))) == count


@pytest.mark.parametrize("body", [None, "", "{", "x" * (MAX_BATCH_BYTES + 1)])
def test_unreadable_batch_counts_as_one_request(body: str | None) -> None:
    """G6: as any invalid request."""
    assert count_items(Request.from_api_gateway(event("POST", BATCHES, body=body))) == 1


ALMOST_ITEMS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys([*CHANGE, "operation", "idempotency_key", "starts_at", "expires_at", "else"], JSON),
)
ITEMS = (
    JSON
    | ALMOST_ITEMS
    | ALMOST_ITEMS.map(lambda fields: item("k") | fields)
    | st.tuples(ANY_TEXT, st.sampled_from(["grant", "revoke", "extend"])).map(lambda pair: item(*pair))
)
BODIES = st.fixed_dictionaries({}, optional={"items": st.lists(ITEMS, max_size=8), "atomic": JSON, "else": JSON})


@HYPOTHESIS_SETTINGS
@given(
    body=(BODIES | JSON | st.lists(ITEMS, max_size=8).map(lambda items: {"items": items})).map(json.dumps) | ANY_TEXT
)
@example(body="[" * MAX_BATCH_BYTES)
@example(body='{"items":[' * 9000)
@example(body='{"items":[' + "9" * 5000 + "]}")
@example(body='{"items":[{"operation":' + "[" * 20000 + "]" * 20000 + "}]}")
@example(body='{"items":[{"idempotency_key":"\\ud800","operation":"grant"}]}')
@example(body="é" * MAX_BATCH_BYTES)
@example(body=json.dumps({"items": [item("k")] * 100, "atomic": True}))
def test_any_batch_is_executed_or_rejected_with_a_reason(body: str) -> None:
    """E5, K6: never a 5xx; every executed item satisfies all rules, and every other one has a reason."""
    batches = FakeBatches()
    request = Request.from_api_gateway(event("POST", BATCHES, body=body))
    response = change_batch.with_runtime(BatchRuntime(batches)).respond(request).to_api_gateway()
    assert_matches_contract("POST", BATCHES, response["statusCode"], response["headers"], response["body"])
    if response["statusCode"] != 200:
        assert response["statusCode"] in {400, 413}
        assert batches.executed == []
        return
    (batch,) = batches.executed
    sent = json.loads(body)["items"]
    assert 1 <= len(batch.items) == len(sent) == count_items(request) <= 100
    validator = schema_validator(document()["components"]["schemas"]["BatchItem"])
    for each, fields in zip(batch.items, sent, strict=True):
        if isinstance(each, BatchItem):
            assert validator.is_valid(fields)
            assert each.key.isascii()
            assert all(1 <= len(value) <= 128 for value in each.command.fields().values())
        else:
            assert str(each)


@pytest.mark.parametrize(
    "fields",
    [
        item("k"),
        item("k", "revoke"),
        item("k", "extend", expires_at="2099-01-01T00:00:00Z"),
        item("k", "extend", expires_at=None),
        item("k", starts_at="2099-01-01T00:00:00Z", expires_at=None),
        item("k", "extend"),
        item("k", "revoke", expires_at=None),
        item("k", "delete"),
        item("a, b"),
        item(" "),
        item("x" * 256),
        item("k", user_id=7),
        item("k") | {"operation": None},
        {},
    ],
)
def test_item_schema_and_parser_agree(fields: dict[str, Any]) -> None:
    """The document and the code allow the same items."""
    schema = document()["components"]["schemas"]["BatchItem"]
    (parsed,) = BatchCommand.parse({"items": [fields]}).items
    assert schema_validator(schema).is_valid(fields) == isinstance(parsed, BatchItem)
