from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from tests.support.fake_api import FakeApi, Fault, Reply, error

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.command.conftest import Result

    Run = Callable[..., Result]

GRANT = ("entitlements", "grant", "u_1", "item1", "--reason", "purchase")


def test_grant_prints_its_key_before_it_sends_the_request(grantwire: Run, api: FakeApi) -> None:
    """T3: the key is on standard error and in the request, so that the change can be repeated by hand."""
    result = grantwire(*GRANT)
    assert result.code == 0
    (call,) = api.calls
    assert f"Idempotency-Key {call.key}" in result.err
    assert call.body["purchase_id"] == call.key
    assert "status              ACTIVE" in result.out.splitlines()


def test_lost_response_is_repeated_with_the_same_key(grantwire: Run, api: FakeApi) -> None:
    """T3: a 503 after the commit leads to one grant, and the stored response."""
    api.faults = [Fault(error(503, "UNAVAILABLE", Retry_After="0"), after_effect=True)]
    result = grantwire(*GRANT, "--key", "k_1", "--json")
    assert (result.code, result.json["version"], result.json["replayed"]) == (0, 1, True)
    assert [call.key for call in api.calls] == ["k_1", "k_1"]
    assert api.applied == [("grant", "u_1", "item1")]


def test_unknown_outcome_says_how_to_repeat_the_change(grantwire: Run, api: FakeApi) -> None:
    """T3: the printed command line sends the same request, with absolute times."""
    api.faults = [Fault(error(503, "UNAVAILABLE", Retry_After="60"))]
    refused = grantwire(*GRANT, "--expires", "30d", "--timeout", "1")
    assert refused.code == 3
    words = shlex.split(refused.err.strip().splitlines()[-1])
    first = api.calls[0]
    assert words[0] == "grantwire"
    assert grantwire(*words[1:]).code == 0
    second = api.calls[1]
    assert (second.key, second.body) == (first.key, first.body)


@pytest.mark.parametrize(
    ("reply", "code", "name"),
    [
        (error(400, "BAD_REQUEST", "user_id must have at most 128 characters"), 1, "BAD_REQUEST"),
        (error(409, "ENTITLEMENT_STATE_CONFLICT", "already ACTIVE"), 1, "ENTITLEMENT_STATE_CONFLICT"),
        (error(401, "UNAUTHENTICATED"), 4, "UNAUTHENTICATED"),
        (error(403, "FORBIDDEN"), 4, "FORBIDDEN"),
        (error(404, "NOT_FOUND", "no such path"), 1, "NOT_FOUND"),
        (error(413, "TOO_LARGE"), 1, "TOO_LARGE"),
        (error(429, "RATE_LIMITED", Retry_After="60"), 3, "RATE_LIMITED"),
        (error(500, "INTERNAL"), 3, "INTERNAL"),
        (error(503, "UNAVAILABLE", Retry_After="60"), 3, "UNAVAILABLE"),
        (Reply(502, "not an object", {"Retry-After": "60"}), 3, "HTTP_502"),
    ],
)
def test_each_error_has_its_exit_code(grantwire: Run, api: FakeApi, reply: Reply, code: int, name: str) -> None:
    """T3: with --json, the error is JSON on standard error, with the API's code, and standard output is empty."""
    api.faults = [Fault(reply)]
    result = grantwire(*GRANT, "--timeout", "1", "--json")
    assert (result.code, result.out, result.error["code"]) == (code, "", name)


def test_unreachable_installation_has_its_exit_code(run: Run, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """T3: nothing listens at the address."""
    monkeypatch.setenv("GRANTWIRE_API", "http://127.0.0.1:9")
    monkeypatch.setenv("GRANTWIRE_TOKEN", "t")
    result = run("entitlements", "list", "u_1", "--timeout", "0")
    assert result.code == 3
    assert "http://127.0.0.1:9 does not respond" in result.err
    assert api.calls == []


def test_list_follows_the_pages(grantwire: Run, api: FakeApi) -> None:
    """T3: all pages are one result, and --limit ends it."""
    api.entitlements = {("u_1", f"item{number}"): {"status": "ACTIVE", "version": number} for number in range(1, 6)}
    api.routes[("GET", "/v1/users/u_1/entitlements")] = lambda call: api._list("u_1", {**call.query, "limit": "2"})  # noqa: SLF001
    names = [
        item["stock_keeping_unit"] for item in grantwire("entitlements", "list", "u_1", "--json").json["entitlements"]
    ]
    assert names == ["item1", "item2", "item3", "item4", "item5"]
    limited = grantwire("--json", "entitlements", "list", "u_1", "--limit", "3").json
    assert len(limited["entitlements"]) == 3
    assert api.calls[-1].query["limit"] == "3"


def test_list_is_filtered_by_the_api(grantwire: Run, api: FakeApi) -> None:
    """T9: status and prefix are passed on; another status is wrong usage, and nothing is sent."""
    result = grantwire("entitlements", "list", "u_1", "--status", "ACTIVE", "--prefix", "premium.")
    assert (result.code, "u_1 has no such entitlements" in result.err) == (0, True)
    assert api.calls[-1].query == {"status": "ACTIVE", "prefix": "premium.", "limit": "1000"}
    assert grantwire("entitlements", "list", "u_1", "--status", "NONE").code == 2
    assert len(api.calls) == 1


def test_names_are_percent_encoded_in_paths(grantwire: Run, api: FakeApi) -> None:
    """T3: no name becomes another path."""
    for name, path in (("a/b", "a%2Fb"), ("..", "%2E%2E"), ("50%", "50%25"), ("é ?#", "%C3%A9%20%3F%23")):
        grantwire("entitlements", "list", name)
        assert api.calls[-1].path == f"/v1/users/{path}/entitlements"


def test_text_of_the_installation_cannot_control_the_terminal(grantwire: Run, api: FakeApi) -> None:
    """T3: escape sequences and control characters are printed as such."""
    api.entitlements[("u_1", "\x1b[31mred\u202e\tx\n")] = {"status": "ACTIVE", "version": 1}
    result = grantwire("entitlements", "list", "u_1")
    assert "\\x1b[31mred\\u202e\\tx\\n   ACTIVE" in result.out
    assert "\x1b" not in result.out


def test_check_exits_with_the_answer(grantwire: Run, api: FakeApi) -> None:
    """T3: 0 if the user may, 5 if not; --at is passed on."""
    body = {"user_id": "u_1", "stock_keeping_unit": "i", "allowed": True, "status": "ACTIVE", "version": 1}
    body |= {"reason": {"code": "ACTIVE", "message": "active without an end"}, "starts_at": None, "expires_at": None}
    api.respond("GET", "/v1/users/u_1/entitlements/i", body)
    allowed = grantwire("entitlements", "check", "u_1", "i")
    assert allowed.code == 0
    assert "reason   active without an end\n" in allowed.out
    api.respond("GET", "/v1/users/u_1/entitlements/i", body | {"allowed": False, "status": "NONE"})
    refused = grantwire("entitlements", "check", "u_1", "i", "--at", "2026-01-01T00:00:00Z", "--json")
    assert (refused.code, refused.json["allowed"]) == (5, False)
    assert api.calls[-1].query == {"at": "2026-01-01T00:00:00Z"}


def test_extend_moves_or_removes_the_end(grantwire: Run, api: FakeApi) -> None:
    """T3: null removes the end; both or neither option is wrong usage."""
    api.respond("POST", "/v1/entitlements/extensions", {"status": "ACTIVE"})
    extend = ("entitlements", "extend", "u_1", "club", "--reason", "renewal")
    assert grantwire(*extend, "--expires", "2027-03-08T08:10:00+01:00").code == 0
    assert api.calls[-1].body["expires_at"] == "2027-03-08T07:10:00Z"
    assert grantwire(*extend, "--no-end").code == 0
    assert api.calls[-1].body["expires_at"] is None
    assert grantwire(*extend).code == 2
    assert grantwire(*extend, "--no-end", "--expires", "1d").code == 2
    assert grantwire(*extend, "--expires", "2027-03-08").code == 2


def test_revoke_asks_first(grantwire: Run, api: FakeApi) -> None:
    """T3: without a terminal, --yes is required, and nothing is sent without it."""
    grantwire(*GRANT)
    revoke = ("entitlements", "revoke", "u_1", "item1", "--reason", "refund")
    assert grantwire(*revoke).code == 2
    assert len(api.calls) == 1
    assert grantwire(*revoke, "--yes").code == 0
    assert api.applied[-1] == ("revoke", "u_1", "item1")


def test_history_is_listed(grantwire: Run, api: FakeApi) -> None:
    """T3: newest first, page by page."""
    changes = [
        {"version": number, "operation": "GRANT", "occurred_at": "2026-01-08T07:10:00.000000Z"} for number in (2, 1)
    ]

    def page(call: object) -> Reply:
        before = getattr(call, "query", {}).get("before")
        more = {} if before else {"next_before": "c1"}
        return Reply(200, {"history": changes[1:] if before else changes[:1], **more})

    api.routes[("GET", "/v1/users/u_1/entitlements/i/history")] = page
    result = grantwire("entitlements", "history", "u_1", "i", "--json")
    assert [change["version"] for change in json.loads(result.out)["history"]] == [2, 1]
