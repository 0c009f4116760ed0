"""T2: trace ids of X-Ray and of W3C Trace Context are the same id in two forms."""

from __future__ import annotations

import re
import uuid

import pytest

from grantwire.api.request import Request
from grantwire.observability import build_traceparent, parse_trace_id, trace_id_from_headers
from tests.support.client import event

W3C = "0af7651916cd43dd8448eb211c80319c"
XRAY = "1-0af76519-16cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{W3C}-b7ad6b7169203331-01"
OTHER = "1-67891233-abcdef012345678912345678"


@pytest.mark.parametrize(
    "header",
    [
        TRACEPARENT,
        f" {TRACEPARENT} ",
        f"00-{W3C}-b7ad6b7169203331-00",
        f"cc-{W3C}-b7ad6b7169203331-01-what-the-future-will-be-like",
    ],
)
def test_traceparent_of_the_caller_is_used_before_the_id_of_the_gateway(header: str) -> None:
    """T2: API Gateway adds its own id to every request."""
    request = Request.from_api_gateway(
        event("GET", "/", headers={"traceparent": header, "X-Amzn-Trace-Id": f"Root={OTHER}"})
    )
    assert request.trace_id == XRAY


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        TRACEPARENT.upper(),
        f"ff-{W3C}-b7ad6b7169203331-01",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{W3C}-{'0' * 16}-01",
        f"00-{W3C}-b7ad6b7169203331-01-more",
        f"00-{W3C}-b7ad6b7169203331",
        "cc-" + TRACEPARENT[3:] + "-" + "x" * 600,
    ],
)
def test_invalid_traceparent_is_ignored(header: str) -> None:
    """T2: the request is served with the id of the gateway, as W3C requires."""
    headers = {"traceparent": header, "X-Amzn-Trace-Id": f"Root={OTHER}"}
    assert Request.from_api_gateway(event("GET", "/", headers=headers)).trace_id == OTHER


def test_repeated_traceparent_is_ignored() -> None:
    """T2: it is not known which one is meant."""
    headers = {"traceparent": [TRACEPARENT, TRACEPARENT], "X-Amzn-Trace-Id": [f"Root={OTHER}"]}
    assert Request.from_api_gateway(event("GET", "/", multiValueHeaders=headers)).trace_id == OTHER


def test_request_without_any_id_gets_a_new_one() -> None:
    """T2: in the form of X-Ray."""
    ids = {trace_id_from_headers(None, traceparent=None) for _ in range(3)}
    assert len(ids) == 3
    assert all(re.fullmatch(r"1-[0-9a-f]{8}-[0-9a-f]{24}", trace_id) for trace_id in ids)


@pytest.mark.parametrize("text", [XRAY, W3C, TRACEPARENT, f"Root={XRAY}", f"Self=1-x;Root={XRAY};Sampled=1"])
def test_each_form_of_an_id_is_found(text: str) -> None:
    """T2: an operator pastes what a log line has."""
    assert parse_trace_id(text) == XRAY


@pytest.mark.parametrize("text", ["", "x", W3C[:-1], XRAY + "0", W3C.upper()])
def test_other_text_is_no_trace_id(text: str) -> None:
    """T2: the response says so."""
    assert parse_trace_id(text) is None


def test_messages_have_a_traceparent_of_their_own() -> None:
    """T2: the id of the trace is kept, and a repeat of the message has the same parent."""
    event_id = str(uuid.uuid4())
    header = build_traceparent(XRAY, event_id)
    assert header == build_traceparent(XRAY, event_id)
    assert header is not None
    assert re.fullmatch(rf"00-{W3C}-[0-9a-f]{{16}}-01", header)
    assert parse_trace_id(header) == XRAY
    assert build_traceparent("an id of another system", event_id) is None
