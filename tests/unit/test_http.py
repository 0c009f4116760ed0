from __future__ import annotations

import json
import os
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from grantwire.api.http import HttpHandler
from grantwire.api.request import Request
from grantwire.api.responses import Response
from grantwire.errors import (
    BadRequestError,
    ConfigError,
    ForbiddenError,
    InternalError,
    KeyConflictError,
    NotFoundError,
    RequestInProgressError,
    RetryableError,
    TooLargeError,
    UnauthenticatedError,
)
from grantwire.idempotency import StoredResponse
from grantwire.observability import configure, logger, metrics
from tests.support.client import CHANGE, GRANTS, Unlimited, event

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET_KEY = "key-that-must-not-be-logged"
# The headers in which proxies name the address of their caller. API Gateway passes them on as they were sent.
FORGED_ADDRESS = {
    "X-Forwarded-For": "198.51.100.1",
    "Forwarded": "for=198.51.100.1",
    "Client-IP": "198.51.100.1",
    "True-Client-IP": "198.51.100.1",
    "X-Client-IP": "198.51.100.1",
    "X-Real-IP": "198.51.100.1",
    "sourceIp": "198.51.100.1",
}
MANY_FORGED_ADDRESSES = {name: [value, value] for name, value in FORGED_ADDRESS.items()}


def handler_with(handle: Callable[[Request, Unlimited], Response]) -> HttpHandler[Unlimited]:
    """Return a handler of the grant route that calls `handle`."""
    return HttpHandler({f"POST {GRANTS}": handle}, lambda _: Unlimited())


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(text) for text in capsys.readouterr().out.splitlines()]


def failing_handler(error: Exception) -> HttpHandler[Unlimited]:
    """Return a handler of the grant route that raises `error`."""

    def handle(_request: Request, _rt: Unlimited) -> Response:
        raise error

    return handler_with(handle)


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
def test_error_class_decides_status_code_and_headers(
    error: Exception, status: int, code: str, headers: dict[str, str]
) -> None:
    """E5: the error class decides status, code and headers; the error text is the message."""
    response = failing_handler(error)(event("POST", GRANTS), None)
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
def test_internal_error_response_contains_only_the_request_id(error: Exception) -> None:
    """E5: neither error text nor stack trace is sent, and nothing is raised."""
    sent = event("POST", GRANTS)
    response = failing_handler(error)(sent, None)
    request_id = sent["requestContext"]["requestId"]
    assert response["statusCode"] == 500
    assert json.loads(response["body"]) == {
        "code": "INTERNAL",
        "message": f"internal error, report it with request id {request_id}",
    }


@pytest.mark.parametrize("broken", [{"resource": None}, {"resource": ""}, {"resource": "/v1/other"}])
def test_event_of_another_route_gets_not_found(broken: dict[str, Any]) -> None:
    """A manual invocation or a mistake in the template can cause this."""
    assert failing_handler(AssertionError())(event("POST", GRANTS) | broken, None)["statusCode"] == 404


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
def test_request_without_caller_is_unauthenticated_before_any_other_check(context: dict[str, Any] | None) -> None:
    """E5, I7: the function requires a caller from the authorizer, whatever API Gateway is configured to allow."""
    for sent in (event("POST", GRANTS), event("DELETE", GRANTS), event("POST", "/v1/other"), {"body": "x"}):
        response = failing_handler(AssertionError())(sent | {"requestContext": context}, None)
        assert (response["statusCode"], json.loads(response["body"])["code"]) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    "scopes",
    ["", " ", "entitlements", "entitlements:write:all", "ENTITLEMENTS:WRITE", "entitlements:read ops", None, 7],
)
def test_caller_without_required_scope_is_forbidden(scopes: object) -> None:
    """E5: the function checks the scope itself, in case the API Gateway policy allows too much."""
    context = {"requestId": "r", "authorizer": {"principalId": "shop", "scopes": scopes}}
    response = failing_handler(AssertionError())(event("POST", GRANTS, requestContext=context), None)
    assert response["statusCode"] == 403
    assert json.loads(response["body"]) == {
        "code": "FORBIDDEN",
        "message": "missing required scope entitlements:write",
    }


@pytest.mark.parametrize("scopes", ["entitlements:write", "ops  entitlements:write"])
def test_caller_with_required_scope_is_served(scopes: str) -> None:
    """Other scopes of the caller do not matter."""
    context = {"requestId": "r", "authorizer": {"principalId": "shop", "scopes": scopes}}
    handler = handler_with(lambda request, _: Response(200, json.dumps(request.caller)))
    assert handler(event("POST", GRANTS, requestContext=context), None)["body"] == '"shop"'


@pytest.mark.parametrize("broken", [[], {"headers": 7}, {"pathParameters": {"user_id": 7}}, {"requestContext": "x"}])
def test_malformed_event_gets_internal_error_response(broken: Any) -> None:
    """The handler does not raise: an exception would discard the warm execution environment."""
    assert failing_handler(AssertionError())(broken, None)["statusCode"] == 500


@pytest.mark.parametrize(
    ("body", "quoted_key"),
    [
        ('{"user_id": "u", "reason": "r", "user_id": "v"}', '"user_id"'),
        ('{"user_id": {"a": 1, "b": 2, "b": 3}}', '"b"'),
        ('{"\\ud800": 1, "\\ud800": 2}', '"\\ud800"'),
        (json.dumps({"k" * 200: 1})[:-1] + ", " + json.dumps({"k" * 200: 2})[1:], f'"{"k" * 128}"'),
    ],
)
def test_duplicate_key_in_json_body_is_named(body: str, quoted_key: str) -> None:
    """E5: at any depth; a long key is cut."""
    handler = handler_with(lambda request, _: Response(200, str(request.json_object())))
    response = handler(event("POST", GRANTS, body=body), None)
    assert response["statusCode"] == 400
    assert json.loads(response["body"]) == {
        "code": "BAD_REQUEST",
        "message": f"duplicate key in JSON body: {quoted_key}",
    }


def test_idempotency_key_and_body_are_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """Logs contain no idempotency key, no token and no field of the body."""
    body = json.dumps(CHANGE | {"user_id": "user-that-must-not-be-logged"})
    sent = event("POST", GRANTS, headers={"Idempotency-Key": SECRET_KEY, "Authorization": "Bearer t0ken"}, body=body)
    for handler in (
        handler_with(lambda request, _: Response(200, str(request.json_object()))),
        failing_handler(ValueError("x")),
    ):
        handler(sent, None)
    logged = capsys.readouterr().out
    for secret in (SECRET_KEY, "must-not-be-logged", "t0ken"):
        assert secret not in logged


def test_request_writes_one_line_with_log_fields_and_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    """The line has the fields for troubleshooting, and is a document in CloudWatch's embedded metric format."""
    trace = "1-5759e988-bd862e3fe1be46a994272793"
    sent = event("POST", GRANTS, headers={"X-Amzn-Trace-Id": f"Self=1-x;Root={trace};Sampled=1"})
    handler_with(lambda *_: Response.from_stored(StoredResponse(200, "{}", "REPLAYED")))(sent, None)
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


def test_request_line_has_fixed_fields_that_replace_no_dimension_or_metric(capsys: pytest.CaptureFixture[str]) -> None:
    """Powertools lets metadata overwrite dimensions, so no field has the name of a dimension or metric."""
    handler_with(lambda *_: Response(200, "{}"))(event("DELETE", GRANTS), None)
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
        "source_address",
        "asked_for",
    }
    assert (line["service"], line["route"], line["outcome"]) == ("grantwire", f"POST {GRANTS}", "METHOD_NOT_ALLOWED")


@pytest.mark.parametrize(
    ("identity", "address"),
    [
        ({"sourceIp": "192.0.2.7"}, "192.0.2.7"),
        ({"sourceIp": "2001:DB8:0::1"}, "2001:db8::1"),
        ({"sourceIp": "::ffff:192.0.2.7"}, "::ffff:192.0.2.7"),
        ({"sourceIp": "::FFFF:c000:207"}, "::ffff:192.0.2.7"),
        ({"sourceIp": "fe80::1%eth0"}, None),
        ({"sourceIp": "192.0.2.0/24"}, None),
        ({"sourceIp": "test-invoke-source-ip"}, None),
        ({"sourceIp": "1" * 1_000_000}, None),
        ({"sourceIp": 3232235777}, None),
        ({"sourceIp": None}, None),
        ({}, None),
        (None, None),
        ("192.0.2.7", None),
    ],
)
def test_source_address_is_in_the_request_line(
    capsys: pytest.CaptureFixture[str], identity: object, address: str | None
) -> None:
    """G7: in canonical form; a missing or invalid one is null and refuses nothing. The caller cannot choose it."""
    context = event("POST", GRANTS)["requestContext"] | {"identity": identity}
    sent = event(
        "POST", GRANTS, requestContext=context, headers=FORGED_ADDRESS, multiValueHeaders=MANY_FORGED_ADDRESSES
    )
    response = handler_with(lambda *_: Response(200, "{}"))(sent, None)
    (line,) = _lines(capsys)
    assert (response["statusCode"], line["source_address"]) == (200, address)


def test_request_lines_are_independent(capsys: pytest.CaptureFixture[str]) -> None:
    """Each line has the outcome, caller and requested route of its own request only."""
    handler = handler_with(lambda *_: Response(200, "{}"))
    handler(event("DELETE", GRANTS), None)
    failing_handler(RetryableError("later"))(event("POST", GRANTS), None)
    handler(event("POST", GRANTS, requestContext={"requestId": "r"}), None)
    handler(event("POST", GRANTS), None)
    lines = _lines(capsys)
    outcomes = ["METHOD_NOT_ALLOWED", "UNAVAILABLE", "UNAUTHENTICATED", "OK"]
    assert [line["outcome"] for line in lines] == outcomes
    assert ["asked_for" in line for line in lines] == [True, False, False, False]
    assert [line["caller"] for line in lines] == ["tests", "tests", "anonymous", "tests"]
    assert [line["Requests"] for line in lines] == [[1.0]] * 4
    assert ["RequestsRefused" in line for line in lines] == [False, False, True, False]
    for line in lines:
        assert line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["route", "outcome", "service"]]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (BadRequestError("bad"), "BAD_REQUEST"),
        (ForbiddenError("no"), "FORBIDDEN"),
        (UnauthenticatedError("who"), "UNAUTHENTICATED"),
        (RequestInProgressError("busy"), "REQUEST_IN_PROGRESS"),
    ],
)
def test_refused_request_is_counted_for_its_caller(
    error: Exception, outcome: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line of the request also has a metric with the caller as dimension; it stays one line."""
    failing_handler(error)(event("POST", GRANTS), None)
    (line,) = _lines(capsys)
    by_route, by_caller = line["_aws"]["CloudWatchMetrics"]
    assert by_caller == {
        "Namespace": by_route["Namespace"],
        "Dimensions": [["caller", "outcome", "service"]],
        "Metrics": [{"Name": "RequestsRefused", "Unit": "Count"}],
    }
    assert (line["RequestsRefused"], line["caller"], line["outcome"]) == ([1.0], "tests", outcome)
    assert "caller" not in by_route["Dimensions"][0]


@pytest.mark.parametrize(
    "error", [KeyConflictError("used"), NotFoundError("nothing"), RetryableError("later"), ZeroDivisionError("bug")]
)
def test_other_outcomes_are_not_counted_for_a_caller(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """Only refusals have the dimension, so that a successful request adds no metric for each caller."""
    failing_handler(error)(event("POST", GRANTS), None)
    line = _lines(capsys)[-1]
    assert len(line["_aws"]["CloudWatchMetrics"]) == 1
    assert "RequestsRefused" not in line


def test_request_line_is_written_at_log_level_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The line contains the metrics, so the log level does not suppress it."""
    level = logger.log_level
    logger.setLevel("ERROR")
    try:
        handler_with(lambda *_: Response(200, "{}"))(event("POST", GRANTS), None)
    finally:
        logger.setLevel(level)
    (line,) = _lines(capsys)
    assert (line["Requests"], line["outcome"], line["caller"]) == ([1.0], "OK", "tests")


@pytest.mark.parametrize("variable", ["POWERTOOLS_METRICS_DISABLED", "POWERTOOLS_DEV"])
def test_disabled_metrics_suppress_the_request_line_but_not_the_response(
    variable: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Powertools' variables remove the line; a later line contains no values of it."""
    handler = handler_with(lambda *_: Response(200, "{}"))
    monkeypatch.setenv(variable, "true")
    configure(os.environ)
    assert handler(event("DELETE", GRANTS), None)["statusCode"] == 405
    assert capsys.readouterr().out == ""
    monkeypatch.delenv(variable)
    configure(os.environ)
    handler(event("POST", GRANTS), None)
    (line,) = _lines(capsys)
    assert (line["Requests"], line["outcome"], "asked_for" in line) == ([1.0], "OK", False)


def test_response_is_returned_if_the_request_line_cannot_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is committed, so the caller gets its response; the next line has no values of the lost one."""
    handler = handler_with(lambda *_: Response(200, "{}"))
    with monkeypatch.context() as patch:
        patch.setattr(metrics, "write_document", Mock(side_effect=OSError("standard output is closed")))
        assert handler(event("DELETE", GRANTS), None)["statusCode"] == 405
    assert [line["message"] for line in _lines(capsys)] == ["could not write request line"]
    handler(event("POST", GRANTS), None)
    (line,) = _lines(capsys)
    assert (line["Requests"], line["outcome"], "asked_for" in line) == ([1.0], "OK", False)


def test_malformed_event_is_not_logged_with_ids_of_the_previous_request(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise a search for the previous request would find this line."""
    handler = handler_with(lambda *_: Response(200, "{}"))
    handler(event("POST", GRANTS), None)
    handler({"headers": 7}, None)
    *_, line = _lines(capsys)
    assert line["message"] == "invalid API Gateway event"
    assert line.keys().isdisjoint({"correlation_id", "trace_id"})


def test_wrong_method_counts_for_the_route_and_logs_the_requested_route(capsys: pytest.CaptureFixture[str]) -> None:
    """A caller must not be able to create values of a metric dimension."""
    handler_with(lambda *_: Response(200, "{}"))(event("DELETE", GRANTS), None)
    (line,) = (json.loads(text) for text in capsys.readouterr().out.splitlines())
    assert (line["route"], line["outcome"]) == (f"POST {GRANTS}", "METHOD_NOT_ALLOWED")
    assert line["asked_for"] == f"DELETE {GRANTS}"


def test_all_lines_of_a_request_have_its_trace_id(capsys: pytest.CaptureFixture[str]) -> None:
    """The stack trace of a failure has the same trace id as the request line."""
    failing_handler(ZeroDivisionError("oops"))(event("POST", GRANTS), None)
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [line["message"] for line in lines] == ["request failed", "request completed"]
    assert lines[0]["trace_id"] == lines[1]["trace_id"]


def test_trace_id_is_created_if_the_request_has_none() -> None:
    """Events and audit rows can always be joined by trace id."""
    request = Request.from_api_gateway(event("POST", GRANTS))
    assert re.fullmatch(r"1-[0-9a-f]{8}-[0-9a-f]{24}", request.trace_id)


def test_trace_id_of_the_lambda_runtime_has_priority_over_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """On AWS the environment variable has the trace of the current invocation."""
    runtime_trace = "1-5759e988-bd862e3fe1be46a994272793"
    monkeypatch.setenv("_X_AMZN_TRACE_ID", f"Root={runtime_trace};Parent=53995c3f42cd8ad8;Sampled=1")
    sent = event("POST", GRANTS, headers={"x-amzn-trace-id": "Root=1-00000000-000000000000000000000000"})
    assert Request.from_api_gateway(sent).trace_id == runtime_trace


def test_handler_of_several_routes_selects_by_method_and_path(capsys: pytest.CaptureFixture[str]) -> None:
    """E5: each route has its own scope and function; 405 lists the methods of the path, another path is 404."""
    reads, writes = "GET /v1/users/{user_id}/summary", f"POST {GRANTS}"
    handler: HttpHandler[Unlimited] = HttpHandler(
        {reads: lambda *_: Response(200, '"read"'), writes: lambda *_: Response(200, '"written"')},
        lambda _: Unlimited(),
    )
    authorizer = {"principalId": "shop", "scopes": "entitlements:write"}

    def send(method: str, resource: str, scopes: str) -> tuple[int, str]:
        context = {"requestId": "r", "authorizer": authorizer | {"scopes": scopes}}
        response = handler(event(method, resource, requestContext=context), None)
        return response["statusCode"], response["headers"].get("Allow", "")

    summary = "/v1/users/{user_id}/summary"
    assert send("POST", GRANTS, "entitlements:write") == (200, "")
    assert send("GET", summary, "entitlements:read") == (200, "")
    assert send("GET", summary, "entitlements:write") == (403, "")
    assert send("POST", GRANTS, "entitlements:read") == (403, "")
    assert send("PUT", GRANTS, "entitlements:write") == (405, "POST")
    assert send("GET", "/elsewhere", "entitlements:read") == (404, "")
    routes = [line["route"] for line in _lines(capsys) if "route" in line]
    assert routes == [writes, reads, reads, writes, writes, reads]


def test_caller_is_the_principal_of_the_authorizer() -> None:
    """I7: the caller is the client id, which a token rotation does not change; without authorizer it is None."""
    assert Request.from_api_gateway(event("POST", GRANTS, requestContext={})).caller is None
    context = {"requestId": "r", "authorizer": {"principalId": "shop"}}
    assert Request.from_api_gateway(event("POST", GRANTS, requestContext=context)).caller == "shop"


def test_invalid_environment_fails_the_init_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Lambda a runtime is built when the handler is imported; elsewhere importing needs no environment."""

    def build(_environ: object) -> Unlimited:
        raise ConfigError(["DATABASE_URL is missing"])

    monkeypatch.setenv("POWERTOOLS_LOG_LEVEL", "LOUD")
    HttpHandler({f"POST {GRANTS}": lambda *_: Response(200, "{}")}, build)
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "grant")
    with pytest.raises(ConfigError, match=r"bad configuration: POWERTOOLS_LOG_LEVEL .*; DATABASE_URL is missing"):
        HttpHandler({f"POST {GRANTS}": lambda *_: Response(200, "{}")}, build)
    monkeypatch.delenv("POWERTOOLS_LOG_LEVEL")
    with pytest.raises(ConfigError, match="bad configuration: DATABASE_URL is missing"):
        HttpHandler({f"POST {GRANTS}": lambda *_: Response(200, "{}")}, build)
    monkeypatch.setenv("GATEWAY_DECODES_PATH", "maybe")
    with pytest.raises(ConfigError, match=r"bad configuration: GATEWAY_DECODES_PATH .*; DATABASE_URL is missing"):
        HttpHandler({f"POST {GRANTS}": lambda *_: Response(200, "{}")}, build)
