from __future__ import annotations

import json
import os
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from grantwire.entrypoints.http import HttpHandler, Request, Response
from grantwire.errors import (
    ConfigError,
    InternalError,
    KeyConflictError,
    NotFoundError,
    RequestInProgressError,
    RetryableError,
    TooLargeError,
)
from grantwire.idempotency import StoredResponse
from grantwire.observability import configure, logger, metrics
from tests.support.client import CHANGE, GRANTS, event

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET_KEY = "key-that-must-not-be-logged"


def answering(handle: Callable[[Request, None], Response]) -> HttpHandler[None]:
    """A handler for grants that does as it is told."""
    return HttpHandler(f"POST {GRANTS}", lambda _: None, handle)


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(text) for text in capsys.readouterr().out.splitlines()]


def failing(error: Exception) -> HttpHandler[None]:
    """A handler whose work ends with `error`."""

    def handle(_request: Request, _rt: None) -> Response:
        raise error

    return answering(handle)


@pytest.mark.parametrize(
    ("error", "status", "code", "headers"),
    [
        (TooLargeError("big"), 413, "TOO_LARGE", {}),
        (KeyConflictError("used"), 409, "IDEMPOTENCY_KEY_CONFLICT", {}),
        (NotFoundError("nothing"), 404, "NOT_FOUND", {}),
        (RetryableError("later"), 503, "UNAVAILABLE", {"Retry-After": "1"}),
        (RetryableError("later", retry_after=5), 503, "UNAVAILABLE", {"Retry-After": "5"}),
        (RequestInProgressError("busy"), 409, "REQUEST_IN_PROGRESS", {"Retry-After": "1"}),
    ],
)
def test_an_error_becomes_an_answer(error: Exception, status: int, code: str, headers: dict[str, str]) -> None:
    """E5: the class of the error decides about status, code and headers; its text is the message."""
    response = failing(error)(event("POST", GRANTS), None)
    assert response["statusCode"] == status
    assert json.loads(response["body"]) == {"code": code, "message": str(error)}
    assert headers.items() <= response["headers"].items()
    assert response["headers"]["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    "error",
    [
        InternalError("table secret_table"),
        ConfigError(["X is missing"]),
        ZeroDivisionError("secret"),
        KeyError(1),
    ],
)
def test_a_bug_tells_the_caller_nothing_but_a_number_to_quote(error: Exception) -> None:
    """E5: no text of ours, no stack trace; nothing is raised, which would cost the sandbox."""
    sent = event("POST", GRANTS)
    response = failing(error)(sent, None)
    request_id = sent["requestContext"]["requestId"]
    assert response["statusCode"] == 500
    assert json.loads(response["body"]) == {
        "code": "INTERNAL",
        "message": f"something went wrong on our side; quote request {request_id}",
    }


@pytest.mark.parametrize("broken", [{"resource": None}, {"resource": ""}, {"resource": "/v1/other"}])
def test_an_event_that_is_not_for_this_function_is_answered(broken: dict[str, Any]) -> None:
    """Somebody invoked the function by hand, or the template is wrong."""
    assert failing(AssertionError())(event("POST", GRANTS) | broken, None)["statusCode"] == 404


@pytest.mark.parametrize(
    "context",
    [
        None,
        {},
        {"requestId": "r"},
        {"requestId": "r", "authorizer": None},
        {"requestId": "r", "authorizer": {}},
        {"requestId": "r", "authorizer": {"scopes": "entitlements:write"}},
        {"requestId": "r", "authorizer": {"principalId": "", "scopes": "entitlements:write"}},
        {"requestId": "r", "authorizer": {"principalId": None, "scopes": "entitlements:write"}},
    ],
)
def test_an_event_without_a_caller_is_refused_before_anything_else(context: dict[str, Any] | None) -> None:
    """E5, I7: the function lets nobody in whom no authorizer has named, whatever stands in front of it."""
    for sent in (event("POST", GRANTS), event("DELETE", GRANTS), event("POST", "/v1/other"), {"body": "x"}):
        response = failing(AssertionError())(sent | {"requestContext": context}, None)
        assert (response["statusCode"], json.loads(response["body"])["code"]) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    "scopes",
    ["", " ", "entitlements", "entitlements:write:all", "ENTITLEMENTS:WRITE", "entitlements:read ops", None, 7],
)
def test_a_caller_without_the_route_s_scope_is_refused(scopes: object) -> None:
    """E5: also by the function itself, should the gateway's policy allow too much."""
    context = {"requestId": "r", "authorizer": {"principalId": "shop", "scopes": scopes}}
    response = failing(AssertionError())(event("POST", GRANTS, requestContext=context), None)
    assert response["statusCode"] == 403
    assert json.loads(response["body"]) == {
        "code": "FORBIDDEN",
        "message": "this caller has not got the scope entitlements:write",
    }


@pytest.mark.parametrize("scopes", ["entitlements:write", "ops  entitlements:write"])
def test_a_caller_with_the_route_s_scope_is_served(scopes: str) -> None:
    """Whatever other scopes it has."""
    context = {"requestId": "r", "authorizer": {"principalId": "shop", "scopes": scopes}}
    handler = answering(lambda request, _: Response(200, json.dumps(request.caller)))
    assert handler(event("POST", GRANTS, requestContext=context), None)["body"] == '"shop"'


@pytest.mark.parametrize("broken", [[], {"headers": 7}, {"pathParameters": {"user_id": 7}}, {"requestContext": "x"}])
def test_an_event_that_makes_no_sense_is_answered_too(broken: Any) -> None:
    """Nothing escapes: an exception would cost the warm sandbox."""
    assert failing(AssertionError())(broken, None)["statusCode"] == 500


def test_neither_key_nor_body_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """What a caller sends is not ours to keep in a log."""
    body = json.dumps(CHANGE | {"user_id": "user-that-must-not-be-logged"})
    sent = event("POST", GRANTS, headers={"Idempotency-Key": SECRET_KEY, "Authorization": "Bearer t0ken"}, body=body)
    for handler in (
        answering(lambda request, _: Response(200, str(request.json_object()))),
        failing(ValueError("x")),
    ):
        handler(sent, None)
    logged = capsys.readouterr().out
    for secret in (SECRET_KEY, "must-not-be-logged", "t0ken"):
        assert secret not in logged


def test_a_request_leaves_one_line_that_is_its_metrics_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The line has what somebody on call looks for, and is a document in CloudWatch's embedded format."""
    trace = "1-5759e988-bd862e3fe1be46a994272793"
    sent = event("POST", GRANTS, headers={"X-Amzn-Trace-Id": f"Self=1-x;Root={trace};Sampled=1"})
    answering(lambda *_: Response.from_stored(StoredResponse(200, "{}", "REPLAYED")))(sent, None)
    (line,) = (json.loads(text) for text in capsys.readouterr().out.splitlines())
    assert (line["level"], line["message"], line["service"]) == ("INFO", "request completed", "grantwire")
    assert (line["route"], line["status_code"], line["outcome"]) == (f"POST {GRANTS}", 200, "REPLAYED")
    assert (line["trace_id"], line["correlation_id"]) == (trace, sent["requestContext"]["requestId"])
    assert (line["cold_start"], line["caller"]) == (True, "tests")
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert directive == {
        "Namespace": "Grantwire",
        "Dimensions": [["route", "outcome", "service"]],
        "Metrics": [{"Name": "Requests", "Unit": "Count"}, {"Name": "Latency", "Unit": "Milliseconds"}],
    }
    assert line["Requests"] == [1.0]
    assert [value > 0 for value in line["Latency"]] == [True]
    written_at = datetime.fromisoformat(line["timestamp"])
    assert abs((datetime.now(UTC) - written_at).total_seconds()) < 60
    assert abs(line["_aws"]["Timestamp"] / 1000 - time.time()) < 60


def test_no_field_of_a_request_takes_the_place_of_a_dimension_or_metric(capsys: pytest.CaptureFixture[str]) -> None:
    """Powertools writes metadata over dimensions: the fields are a fixed list that has none of their names."""
    answering(lambda *_: Response(200, "{}"))(event("DELETE", GRANTS), None)
    (line,) = _lines(capsys)
    (directive,) = line.pop("_aws")["CloudWatchMetrics"]
    measured = {"route", "outcome", "service", "Requests", "Latency"}
    assert {*directive["Dimensions"][0], *(metric["Name"] for metric in directive["Metrics"])} == measured
    assert line.keys() - measured == {
        "level",
        "message",
        "timestamp",
        "correlation_id",
        "trace_id",
        "aws_request_id",
        "cold_start",
        "status_code",
        "caller",
        "asked_for",
    }
    assert (line["service"], line["route"], line["outcome"]) == ("grantwire", f"POST {GRANTS}", "METHOD_NOT_ALLOWED")


def test_one_request_leaves_nothing_to_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    """Outcomes, callers and what was asked for differ; each line has its own only."""
    handler = answering(lambda *_: Response(200, "{}"))
    handler(event("DELETE", GRANTS), None)
    failing(RetryableError("later"))(event("POST", GRANTS), None)
    handler(event("POST", GRANTS, requestContext={"requestId": "r"}), None)
    handler(event("POST", GRANTS), None)
    lines = _lines(capsys)
    outcomes = ["METHOD_NOT_ALLOWED", "UNAVAILABLE", "UNAUTHENTICATED", "OK"]
    assert [line["outcome"] for line in lines] == outcomes
    assert ["asked_for" in line for line in lines] == [True, False, False, False]
    assert [line["caller"] for line in lines] == ["tests", "tests", None, "tests"]
    assert [line["Requests"] for line in lines] == [[1.0]] * 4
    for line in lines:
        assert line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["route", "outcome", "service"]]


def test_above_info_the_request_s_line_is_written_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever wants fewer lines still wants the counts."""
    level = logger.log_level
    logger.setLevel("ERROR")
    try:
        answering(lambda *_: Response(200, "{}"))(event("POST", GRANTS), None)
    finally:
        logger.setLevel(level)
    (line,) = _lines(capsys)
    assert (line["Requests"], line["outcome"], line["caller"]) == ([1.0], "OK", "tests")


@pytest.mark.parametrize("variable", ["POWERTOOLS_METRICS_DISABLED", "POWERTOOLS_DEV"])
def test_a_request_without_its_line_is_answered(
    variable: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Powertools' switches remove the line, and nothing of it turns up in a later one."""
    handler = answering(lambda *_: Response(200, "{}"))
    monkeypatch.setenv(variable, "true")
    configure(os.environ)
    assert handler(event("DELETE", GRANTS), None)["statusCode"] == 405
    assert capsys.readouterr().out == ""
    monkeypatch.delenv(variable)
    configure(os.environ)
    handler(event("POST", GRANTS), None)
    (line,) = _lines(capsys)
    assert (line["Requests"], line["outcome"], "asked_for" in line) == ([1.0], "OK", False)


def test_a_line_that_cannot_be_written_does_not_cost_the_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done is done, and the caller must hear of it; the next line has nothing of the lost one."""
    handler = answering(lambda *_: Response(200, "{}"))
    with monkeypatch.context() as patch:
        patch.setattr(metrics, "write_document", Mock(side_effect=OSError("standard output is closed")))
        assert handler(event("DELETE", GRANTS), None)["statusCode"] == 405
    assert [line["message"] for line in _lines(capsys)] == ["could not write request line"]
    handler(event("POST", GRANTS), None)
    (line,) = _lines(capsys)
    assert (line["Requests"], line["outcome"], "asked_for" in line) == ([1.0], "OK", False)


def test_a_malformed_event_is_not_logged_with_the_ids_of_the_request_before(capsys: pytest.CaptureFixture[str]) -> None:
    """Its line would be found when that request is looked for."""
    handler = answering(lambda *_: Response(200, "{}"))
    handler(event("POST", GRANTS), None)
    handler({"headers": 7}, None)
    *_, line = _lines(capsys)
    assert line["message"] == "invalid API Gateway event"
    assert line.keys().isdisjoint({"correlation_id", "trace_id"})


def test_a_wrong_method_counts_for_its_route_and_says_what_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """A dimension must not be a caller's to choose."""
    answering(lambda *_: Response(200, "{}"))(event("DELETE", GRANTS), None)
    (line,) = (json.loads(text) for text in capsys.readouterr().out.splitlines())
    assert (line["route"], line["outcome"]) == (f"POST {GRANTS}", "METHOD_NOT_ALLOWED")
    assert line["asked_for"] == f"DELETE {GRANTS}"


def test_every_line_of_a_request_has_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    """A failure's stack trace is found by the same id as the request's line."""
    failing(ZeroDivisionError("oops"))(event("POST", GRANTS), None)
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [line["message"] for line in lines] == ["request failed", "request completed"]
    assert lines[0]["trace_id"] == lines[1]["trace_id"]


def test_without_a_trace_one_is_made() -> None:
    """So that events and audit rows can always be joined."""
    request = Request.from_api_gateway(event("POST", GRANTS))
    assert re.fullmatch(r"1-[0-9a-f]{8}-[0-9a-f]{24}", request.trace_id)


def test_the_runtime_s_trace_goes_before_the_caller_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """On AWS the environment names the trace of this very invocation."""
    mine = "1-5759e988-bd862e3fe1be46a994272793"
    monkeypatch.setenv("_X_AMZN_TRACE_ID", f"Root={mine};Parent=53995c3f42cd8ad8;Sampled=1")
    sent = event("POST", GRANTS, headers={"x-amzn-trace-id": "Root=1-00000000-000000000000000000000000"})
    assert Request.from_api_gateway(sent).trace_id == mine


def test_the_authorizer_s_principal_is_the_caller() -> None:
    """I7: by its id, which no token of it changes; without an authorizer there is none."""
    assert Request.from_api_gateway(event("POST", GRANTS, requestContext={})).caller is None
    context = {"requestId": "r", "authorizer": {"principalId": "shop"}}
    assert Request.from_api_gateway(event("POST", GRANTS, requestContext=context)).caller == "shop"


def test_a_bad_environment_stops_the_function_in_its_init_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Lambda a handler is built when it is imported; elsewhere importing needs no environment."""

    def build(_environ: object) -> None:
        raise ConfigError(["DATABASE_URL is missing"])

    monkeypatch.setenv("POWERTOOLS_LOG_LEVEL", "LOUD")
    HttpHandler(f"POST {GRANTS}", build, lambda *_: Response(200, "{}"))
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "grant")
    with pytest.raises(ConfigError, match=r"bad configuration: POWERTOOLS_LOG_LEVEL .*; DATABASE_URL is missing"):
        HttpHandler(f"POST {GRANTS}", build, lambda *_: Response(200, "{}"))
    monkeypatch.delenv("POWERTOOLS_LOG_LEVEL")
    with pytest.raises(ConfigError, match="bad configuration: DATABASE_URL is missing"):
        HttpHandler(f"POST {GRANTS}", build, lambda *_: Response(200, "{}"))
