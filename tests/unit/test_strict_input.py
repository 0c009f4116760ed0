"""G8: text from callers has no characters that are invisible, that reorder text, or that stand for lost bytes."""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from itertools import product
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from functions.grant.handler import handler as grant
from functions.query.handler import handler as query
from grantwire.api.request import Request
from grantwire.clients.tokens import Token
from grantwire.errors import BadRequestError
from grantwire.validation import clean_text
from grantwire.wiring.routes.entitlements import ApiRuntime
from tests.support.client import CHANGE, ENTITLEMENTS, GRANTS, event
from tests.support.paths import ROOT
from tests.unit.test_hostile_requests import FakeEntitlements

FORBIDDEN = {
    "replacement": "\ufffd",
    "null": "\x00",
    "tab": "\t",
    "line feed": "\n",
    "delete": "\x7f",
    "next line": "\x85",
    "lone high surrogate": "\ud800",
    "lone low surrogate": "\udfff",
    "line separator": "\u2028",
    "paragraph separator": "\u2029",
    "arabic letter mark": "\u061c",
    "left-to-right mark": "\u200e",
    "right-to-left mark": "\u200f",
    "embedding": "\u202a",
    "override": "\u202e",
    "isolate": "\u2066",
    "pop isolate": "\u2069",
    "zero width space": "\u200b",
    "word joiner": "\u2060",
    "byte order mark": "\ufeff",
}
WHITE_SPACE = {"space": " ", "no-break space": "\xa0", "ideographic space": "\u3000", "em space": "\u2003"}
ALLOWED = ("\u0645\u06cc\u200c\u062e\u0648", "👩\u200d🚀", "a b", "a\xa0b", "é", "日本", "\U0001f680")
_BIDIRECTIONAL = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"

_NAME = yaml.safe_load((ROOT / "openapi.yaml").read_text())["components"]["schemas"]["Name"]


def send(handler: Any, sent: dict[str, Any]) -> tuple[int, dict[str, Any], FakeEntitlements]:
    """Return status and body of the response, and what the function would have done."""
    entitlements = FakeEntitlements()
    response = handler.with_runtime(ApiRuntime(entitlements)).respond(Request.from_api_gateway(sent))
    return response.status_code, json.loads(response.body), entitlements


def send_change(body: str, headers: dict[str, str] | None = None, **parts: Any) -> tuple[int, str]:
    """Send a grant and return status and message; a refused one must do nothing."""
    sent = event("POST", GRANTS, headers={"Idempotency-Key": "k", **(headers or {})}, body=body, **parts)
    status, response, entitlements = send(grant, sent)
    assert (status == 200) == bool(entitlements.changes)
    return status, response.get("message", "")


@pytest.mark.parametrize("field", CHANGE)
def test_forbidden_character_in_a_field_is_refused(field: str) -> None:
    """G8: at every position, as JSON escape or in UTF-8; the message names the field and the character."""
    accepted = []
    for character, form, escaped in product(FORBIDDEN.values(), ("{}x", "x{}", "x{}y"), (True, False)):
        if not escaped and unicodedata.category(character) in {"Cc", "Cs"}:
            continue  # not JSON, or not UTF-8
        text = form.format(character)
        status, message = send_change(json.dumps(CHANGE | {field: text}, ensure_ascii=escaped))
        is_named = message.startswith(f"{field} must not contain") and f"U+{ord(character):04X}" in message
        if status != 400 or not is_named:
            accepted.append((text, escaped, status, message))
    assert accepted == []


@pytest.mark.parametrize("field", CHANGE)
def test_outer_white_space_in_a_field_is_refused(field: str) -> None:
    """G8: at the beginning and the end, it is refused, not removed."""
    texts = [form.format(space) for space in WHITE_SPACE.values() for form in ("{}x", "x{}")]
    refusal = (400, f"{field} must not begin or end with white space")
    assert {text: send_change(json.dumps(CHANGE | {field: text})) for text in texts} == dict.fromkeys(texts, refusal)


@pytest.mark.parametrize("field", CHANGE)
def test_joiners_and_inner_spaces_are_allowed(field: str) -> None:
    """G8: words of several languages and emoji need the joiners."""
    sent = {text: send_change(json.dumps(CHANGE | {field: text})) for text in ALLOWED}
    assert sent == dict.fromkeys(ALLOWED, (200, ""))


def test_forbidden_character_in_path_and_query_is_refused() -> None:
    """G8: the user of a path, and the position of a page."""
    accepted = []
    for character in FORBIDDEN.values():
        for user_id, after, field in ((f"u{character}", "a", "user_id"), ("u", f"a{character}b", "after")):
            page = {"pathParameters": {"user_id": user_id}, "queryStringParameters": {"after": after}}
            status, response, entitlements = send(query, event("GET", ENTITLEMENTS, **page))
            if (status, entitlements.requests) != (400, []) or not response["message"].startswith(
                f"{field} must not contain"
            ):
                accepted.append((user_id, after, status, response))
    assert accepted == []


@pytest.mark.parametrize("key", [" k", "k ", "\u3000k", "k\x85", "k\ufffd", "k\u200b", "k\t", "é"])
def test_invalid_idempotency_key_is_refused(key: str) -> None:
    """G8: the message names the header."""
    status, message = send_change(json.dumps(CHANGE), {"Idempotency-Key": key})
    assert status == 400
    assert message.startswith("Idempotency-Key must")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
@pytest.mark.parametrize("passed", ["base64", "replaced"])
def test_body_that_is_not_utf8_is_refused(encoding: str, passed: str) -> None:
    """G8: it grants nothing to the user U+FFFD, whether the gateway encodes the bytes or replaces invalid ones."""
    raw = json.dumps(CHANGE | {"user_id": "é"}, ensure_ascii=False).encode(encoding)
    if passed == "base64":
        status, message = send_change(base64.b64encode(raw).decode(), isBase64Encoded=True)
    else:
        status, message = send_change(raw.decode(errors="replace"))
    assert status == 400
    assert "user_id must not contain" in message or "valid JSON in UTF-8" in message


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ('Application/JSON;charset="UTF-8"', 200),
        ("application/json; profile=x", 200),
        (None, 200),
        ("", 400),
        ("text/plain", 400),
        ("application/x-www-form-urlencoded", 400),
        ("multipart/form-data; boundary=x", 400),
        ("application/jsonp", 400),
        ("text/json", 400),
        ("application/json; charset=iso-8859-1", 400),
        ("application/json, text/plain", 400),
        ("text/plain; application/json", 400),
    ],
)
def test_content_type_of_a_body_must_be_json(content_type: str | None, status: int) -> None:
    """G8: parameters are allowed, another character set is not; a missing one means JSON."""
    sent, message = send_change(json.dumps(CHANGE), {} if content_type is None else {"content-type": content_type})
    assert sent == status
    assert status == 200 or message == "Content-Type must be application/json, in UTF-8"


def test_repeated_content_type_is_refused() -> None:
    """G8: it would not be clear which one is right."""
    headers = {"Idempotency-Key": ["k"], "Content-Type": ["application/json", "text/plain"]}
    assert send_change(json.dumps(CHANGE), multiValueHeaders=headers)[0] == 400


def test_request_without_body_needs_no_content_type() -> None:
    """G8: reads ignore the header."""
    sent = event("GET", ENTITLEMENTS, pathParameters={"user_id": "u"}, headers={"Content-Type": "text/plain"})
    assert send(query, sent)[0] == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
def test_scheme_of_the_token_is_case_insensitive(scheme: str) -> None:
    """G8: in the function and in API Gateway, which checks the header first."""
    token = Token.mint("live", "0123456789ab")
    header = f"{scheme} {token.text}"
    assert Token.from_header(header) == token
    (expression,) = re.findall(r'ValidationExpression: "(.*)"', (ROOT / "template.yaml").read_text())
    assert re.search(expression, header)
    assert not re.search(expression, header.swapcase().replace(scheme.swapcase(), scheme))


@given(st.text(st.characters(), min_size=1, max_size=20))
def test_rule_follows_the_categories_of_unicode(text: str) -> None:
    """G8: a text is accepted exactly if none of its characters has a forbidden category or is on the list."""
    forbidden = any(
        unicodedata.category(each) in {"Cc", "Cs", "Zl", "Zp"} or each in _BIDIRECTIONAL + "\u200b\u2060\ufeff\ufffd"
        for each in text
    )
    try:
        accepted = clean_text("text", text, max_length=20) == text
    except BadRequestError:
        accepted = False
    assert accepted == (not forbidden and text == text.strip())


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_api_document_has_the_same_rule(text: str) -> None:
    """G8: the pattern of a name in openapi.yaml accepts the same texts; JSON Schema cannot name surrogates."""
    documented = not re.search(_NAME["not"]["pattern"], text) and bool(re.search(_NAME["pattern"], text))
    try:
        accepted = clean_text("text", text, max_length=20) == text
    except BadRequestError:
        accepted = False
    assert accepted == documented
