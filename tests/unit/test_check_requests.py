"""E5, K1, K2, K8: invalid requests to check_entitlement are refused by name, without a database."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from functions.check_entitlement.handler import handler
from grantwire.api.request import Request
from grantwire.clients.scopes import Scope
from grantwire.entitlements.checks import CacheSettings, CheckResult, Checks
from grantwire.entitlements.history import History
from grantwire.entitlements.read_requests import (
    MAX_CHECKS,
    MAX_CHECKS_BYTES,
    CheckRequest,
    ChecksRequest,
    HistoryRequest,
)
from grantwire.errors import BadRequestError, ConfigError
from grantwire.settings import load
from grantwire.wiring.routes.check_entitlement import CheckRuntime
from tests.support.checks import CHECK, CHECKS, HISTORY
from tests.support.client import Response, event
from tests.support.contract import assert_matches_contract, document, schema_validator

NAMES = {"user_id": "u_123", "stock_keeping_unit": "item1"}
TIME_RULE = "must be an RFC 3339 time with a zone, for example 2026-01-31T12:00:00Z"
NAME_RULES = {
    "": "must not be empty",
    " ": "must not be empty",
    " a": "must not begin or end with white space",
    "x" * 129: "must have at most 128 characters",
    "a\x00b": "must not contain control, bidirectional, invisible or replacement characters (found U+0000)",
    "a\u202eb": "must not contain control, bidirectional, invisible or replacement characters (found U+202E)",
}
NOT_STRINGS: list[object] = [None, 7, True, [], {}, ["u"]]


class FakeChecks(Checks):
    """A replacement of the database that records all calls."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def check(self, asked: CheckRequest) -> CheckResult:
        """Record the request."""
        self.calls.append(asked)
        return CheckResult(BODY, "0" * 32, 60)

    def check_at(self, asked: CheckRequest) -> str:
        """Record the request."""
        self.calls.append(asked)
        return BODY

    def check_many(self, asked: ChecksRequest) -> str:
        """Record the request."""
        self.calls.append(asked)
        return f'{{"results":[{BODY}]}}'


class FakeHistory(History):
    """A replacement of the database that records all calls."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def list_changes(self, page: HistoryRequest) -> str:
        """Record the request."""
        self.calls.append(page)
        return '{"user_id":"u","stock_keeping_unit":"s","history":[]}'


BODY = json.dumps(
    document()["paths"][CHECK]["get"]["responses"]["200"]["content"]["application/json"]["examples"]["never"]["value"]
)


def send(method: str, path: str, **parts: Any) -> tuple[Response, list[object]]:
    """Return the response, checked against the API document, and the calls of the database."""
    runtime = CheckRuntime(FakeChecks(), FakeHistory())
    sent = (
        handler.with_runtime(runtime).respond(Request.from_api_gateway(event(method, path, **parts))).to_api_gateway()
    )
    response = Response(sent["statusCode"], sent["headers"], sent["body"])
    assert_matches_contract(method, path, response.status, response.headers, response.body)
    return response, runtime.checks.calls + runtime.history.calls  # type: ignore[attr-defined]


def refuse(method: str, path: str, **parts: Any) -> str:
    """Return the message of a 400; nothing was read."""
    response, calls = send(method, path, **parts)
    assert (response.status, response.code, calls) == (400, "BAD_REQUEST", [])
    return str(response.json["message"])


@pytest.mark.parametrize("path", [CHECK, HISTORY])
@pytest.mark.parametrize("field", NAMES)
@pytest.mark.parametrize("value", NAME_RULES)
def test_invalid_name_in_the_path_is_refused(path: str, field: str, value: str) -> None:
    """E5: both names have the same rules, and the message names the field."""
    assert refuse("GET", path, pathParameters=NAMES | {field: value}) == f"{field} {NAME_RULES[value]}"


@pytest.mark.parametrize("path", [CHECK, HISTORY])
@pytest.mark.parametrize("parameters", [None, {}, {"user_id": "u"}])
def test_missing_name_is_refused(path: str, parameters: dict[str, str] | None) -> None:
    """E5: also if the gateway passes no path parameters."""
    assert refuse("GET", path, pathParameters=parameters).endswith(" must be a string")


@pytest.mark.parametrize(
    ("path", "query", "message"),
    [
        (CHECK, {"at": ["now"]}, f"at {TIME_RULE}"),
        (CHECK, {"at": [""]}, f"at {TIME_RULE}"),
        (CHECK, {"at": ["2026-01-31T12:00:00"]}, f"at {TIME_RULE}"),
        (CHECK, {"at": ["2026-01-31T12:00:00 01:00"]}, f"at {TIME_RULE}"),
        (CHECK, {"at": ["2026-12-31T23:59:60Z"]}, f"at {TIME_RULE}"),
        (CHECK, {"at": ["1999-12-31T23:59:59Z"]}, "at must be in the years 2000 to 9999"),
        (CHECK, {"at": ["9999-12-31T23:59:59-01:00"]}, "at must be in the years 2000 to 9999"),
        (CHECK, {"at": ["2026-01-31T12:00:00Z"] * 2}, "at must be given once"),
        (CHECK, {"at": []}, "at must be given once"),
        (CHECK, {"At": ["2026-01-31T12:00:00Z"]}, "unknown query parameter 'At'; allowed: at"),
        (CHECK, {"limit": ["1"]}, "unknown query parameter 'limit'; allowed: at"),
        (CHECK, {"": [""]}, "unknown query parameter ''; allowed: at"),
        (CHECK, {"\ud800" * 200: ["1"]}, "unknown query parameter "),
        (HISTORY, {"before": ["2026-01-31"]}, f"before {TIME_RULE}"),
        (HISTORY, {"before": ["12"]}, f"before {TIME_RULE}"),
        (HISTORY, {"before": ["2026-01-31T12:00:00Z"] * 2}, "before must be given once"),
        *(
            (HISTORY, {"limit": [limit]}, "limit must be a whole number between 1 and 1000")
            for limit in ("0", "1001", "-1", "ten", "²", "", "1.0", "9" * 5000)
        ),
        (HISTORY, {"limit": ["1", "1"]}, "limit must be given once"),
        (HISTORY, {"at": ["2026-01-31T12:00:00Z"]}, "unknown query parameter 'at'; allowed: limit, before"),
    ],
)
def test_invalid_query_parameter_is_refused(path: str, query: dict[str, list[str]], message: str) -> None:
    """E5: the message names the parameter and what is allowed."""
    parts = {"pathParameters": NAMES, "multiValueQueryStringParameters": query}
    assert refuse("GET", path, **parts).startswith(message)


PAIR = json.dumps(NAMES)
BODIES: dict[str, tuple[str | None, str]] = {
    "no body": (None, "the body must be valid JSON in UTF-8"),
    "not JSON": ("checks", "the body must be valid JSON in UTF-8"),
    "nested too deep": ("[" * 100_000, "the body must be valid JSON in UTF-8"),
    "NaN": ('{"checks":NaN}', "the body must be valid JSON in UTF-8"),
    "an array": (f"[{PAIR}]", "the body must be a JSON object"),
    "null": ("null", "the body must be a JSON object"),
    "a duplicate key": ('{"checks":[],"checks":[]}', 'duplicate key in JSON body: "checks"'),
    "a duplicate key in a check": (
        '{"checks":[{"user_id":"a","user_id":"b"}]}',
        'duplicate key in JSON body: "user_id"',
    ),
    "empty": ("{}", "checks is missing"),
    "another field": (f'{{"checks":[{PAIR}],"x":1}}', "unknown field 'x'; allowed: checks"),
    "a pair": (PAIR, "unknown field 'user_id'; allowed: checks"),
    "checks is null": ('{"checks":null}', "checks must be an array of 1 to 200 objects"),
    "checks is an object": (f'{{"checks":{PAIR}}}', "checks must be an array of 1 to 200 objects"),
    "checks is a string": ('{"checks":"ab"}', "checks must be an array of 1 to 200 objects"),
    "no check": ('{"checks":[]}', "checks must be an array of 1 to 200 objects"),
    "too many": (f'{{"checks":[{",".join([PAIR] * 201)}]}}', "checks must be an array of 1 to 200 objects"),
    "a check is null": (f'{{"checks":[{PAIR},null]}}', "checks[1] must be an object"),
    "a check is an array": ('{"checks":[["u","s"]]}', "checks[0] must be an object"),
    "a check is a string": ('{"checks":["u"]}', "checks[0] must be an object"),
    "a check without user": (
        f'{{"checks":[{PAIR},{{"stock_keeping_unit":"s"}}]}}',
        "checks[1].user_id is missing",
    ),
    "a check without item": ('{"checks":[{"user_id":"u"}]}', "checks[0].stock_keeping_unit is missing"),
    "a check with another field": (
        '{"checks":[{"user_id":"u","stock_keeping_unit":"s","at":"x"}]}',
        "unknown field 'at' in checks[0]; allowed: user_id, stock_keeping_unit",
    ),
    "the last of many is bad": (
        f'{{"checks":[{",".join([PAIR] * 199)},{{"user_id":7,"stock_keeping_unit":"s"}}]}}',
        "checks[199].user_id must be a string",
    ),
}


@pytest.mark.parametrize("case", BODIES)
def test_invalid_body_is_refused(case: str) -> None:
    """E5, K2: the message names the check and its field."""
    body, message = BODIES[case]
    assert refuse("POST", CHECKS, body=body) == message


@pytest.mark.parametrize("field", NAMES)
@pytest.mark.parametrize(
    ("value", "rule"), [*NAME_RULES.items(), *((value, "must be a string") for value in NOT_STRINGS)]
)
def test_invalid_name_in_a_check_is_refused(field: str, value: object, rule: str) -> None:
    """E5, K2: with the rules of every other name."""
    checks = [NAMES, NAMES, NAMES, NAMES | {field: value}]
    assert refuse("POST", CHECKS, body=json.dumps({"checks": checks})) == f"checks[3].{field} {rule}"


def test_query_parameter_of_checks_is_refused() -> None:
    """E5, K2: there are none, so a misplaced one is not ignored."""
    query = {"at": ["2026-01-31T12:00:00Z"]}
    message = refuse("POST", CHECKS, body=f'{{"checks":[{PAIR}]}}', multiValueQueryStringParameters=query)
    assert message == "unknown query parameter 'at'; this route has none"


@pytest.mark.parametrize("encoded", [False, True])
def test_body_that_is_too_large_is_refused(*, encoded: bool) -> None:
    """E5, K2: more than 128 KiB; other routes keep their limit."""
    body = " " * (MAX_CHECKS_BYTES + 1)
    if encoded:
        body = base64.b64encode(body.encode()).decode()
    response, calls = send("POST", CHECKS, body=body, isBase64Encoded=encoded)
    assert (response.status, response.code, calls) == (413, "TOO_LARGE", [])


@pytest.mark.parametrize(
    ("path", "allowed", "methods"),
    [
        (CHECK, "GET", ["POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]),
        (HISTORY, "GET", ["POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]),
        (CHECKS, "POST", ["GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]),
    ],
)
def test_other_method_is_refused(path: str, allowed: str, methods: list[str]) -> None:
    """E5: the Allow header names the allowed one."""
    for method in methods:
        response, calls = send(method, path, pathParameters=NAMES, body=f'{{"checks":[{PAIR}]}}')
        assert (response.status, response.headers["Allow"], calls) == (405, allowed, [])


@pytest.mark.parametrize(("method", "path"), [("GET", CHECK), ("GET", HISTORY), ("POST", CHECKS)])
@pytest.mark.parametrize("scope", [scope for scope in Scope if scope is not Scope.READ_ENTITLEMENTS])
def test_other_scope_is_refused(method: str, path: str, scope: Scope) -> None:
    """I7, K1: only entitlements:read allows it."""
    context = {"requestId": "r", "authorizer": {"principalId": "c", "scopes": scope.value}}
    response, calls = send(method, path, pathParameters=NAMES, requestContext=context)
    assert (response.status, response.json["message"], calls) == (403, "missing required scope entitlements:read", [])


def test_valid_requests_are_passed_on() -> None:
    """K1, K2, K8: with the defaults, and with every parameter."""
    _, calls = send("GET", CHECK, pathParameters={"user_id": "a%2Fb", "stock_keeping_unit": "50%25"})
    assert calls == [CheckRequest("a/b", "50%", None)]
    _, calls = send("GET", CHECK, pathParameters=NAMES, queryStringParameters={"at": "2026-01-31T12:00:00+01:00"})
    assert calls == [CheckRequest("u_123", "item1", datetime(2026, 1, 31, 11, tzinfo=UTC))]
    _, calls = send("GET", HISTORY, pathParameters=NAMES)
    assert calls == [HistoryRequest("u_123", "item1", 100, None)]
    _, calls = send(
        "GET", HISTORY, pathParameters=NAMES, queryStringParameters={"limit": "1000", "before": "2026-01-31T12:00:00Z"}
    )
    assert calls == [HistoryRequest("u_123", "item1", 1000, datetime(2026, 1, 31, 12, tzinfo=UTC))]
    _, calls = send("POST", CHECKS, body=f'{{"checks":[{",".join([PAIR] * MAX_CHECKS)}]}}')
    assert calls == [ChecksRequest(["u_123"] * MAX_CHECKS, ["item1"] * MAX_CHECKS)]


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=200)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["checks", *NAMES, "x"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=timedelta(seconds=5))
@given(body=ANY_JSON | st.lists(ANY_JSON, max_size=3).map(lambda checks: {"checks": checks}))
@example(body={"checks": [NAMES]})
def test_any_body_is_valid_or_refused(body: object) -> None:
    """E5, K2: never a server error; an accepted body satisfies the API document."""
    response, calls = send("POST", CHECKS, body=json.dumps(body))
    assert (response.status, len(calls)) in {(200, 1), (400, 0)}
    valid = schema_validator(document()["components"]["schemas"]["Checks"]).is_valid(body)
    assert valid == (response.status == 200)


@settings(max_examples=200, deadline=timedelta(seconds=5))
@given(
    path=st.sampled_from([CHECK, HISTORY]),
    names=st.fixed_dictionaries(dict.fromkeys(NAMES, ANY_TEXT)),
    query=st.dictionaries(st.sampled_from(["at", "before", "limit", "x"]), st.lists(ANY_TEXT, max_size=2)),
    tags=st.lists(ANY_TEXT, max_size=2),
)
def test_any_request_about_one_entitlement_is_valid_or_refused(
    path: str, names: dict[str, str], query: dict[str, list[str]], tags: list[str]
) -> None:
    """E5, K1, K8: never a server error."""
    parts = {"multiValueQueryStringParameters": query, "multiValueHeaders": {"If-None-Match": tags}}
    response, calls = send("GET", path, pathParameters=names, **parts)
    assert (response.status, len(calls)) in {(200, 1), (304, 1), (400, 0)}


@pytest.mark.parametrize("value", ["-1s", "61m", "1d", "60", "x"])
def test_cache_time_has_limits(value: str) -> None:
    """K1: from 0s to 1h; a function with another value does not start."""
    with pytest.raises(ConfigError, match="ENTITLEMENT_CHECK_CACHE"):
        load(CacheSettings, {"ENTITLEMENT_CHECK_CACHE": value})


def test_cache_time_is_a_minute_by_default() -> None:
    """K1: 60 seconds, and 0s or 1h are possible."""
    assert load(CacheSettings, {}).check_cache == timedelta(seconds=60)
    for value, length in (("0s", timedelta()), ("1h", timedelta(hours=1))):
        assert load(CacheSettings, {"ENTITLEMENT_CHECK_CACHE": value}).check_cache == length


def test_parsers_and_document_have_the_same_limits() -> None:
    """K2, K8: number of checks and size of a page."""
    assert document()["components"]["schemas"]["Checks"]["properties"]["checks"]["maxItems"] == MAX_CHECKS
    parameters = {each["name"]: each for each in document()["paths"][HISTORY]["get"]["parameters"]}
    limits = parameters["limit"]["schema"]
    assert HistoryRequest.parse(NAMES, {}).limit == limits["default"]
    assert HistoryRequest.parse(NAMES, {"limit": [str(limits["maximum"])]}).limit == limits["maximum"]
    with pytest.raises(BadRequestError):
        HistoryRequest.parse(NAMES, {"limit": [str(limits["maximum"] + 1)]})
