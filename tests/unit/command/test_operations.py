from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.fake_api import TOKEN, FakeApi, Fault, Reply, error
from tests.support.ops_examples import (
    ACCEPTED,
    AT,
    CLIENT,
    COMMAND_ID,
    DETAIL,
    EVENT_ID,
    GROUPS,
    LETTER,
    TRACE,
    command,
    problem,
    status,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.fake_api import Call
    from tests.unit.command.conftest import Result

    Run = Callable[..., Result]

LETTERS = "/v1/ops/dead-letters"
REDRIVE = ("dead-letters", "redrive", "--kind", "notification", "--reason", "fixed")
PREVIEW = {
    "dry_run": True,
    "kind": "notification",
    "action": "redrive",
    "selected": 3,
    "would_change": 2,
    "skipped": {"no copy": 1},
    "ids": ["a", "b"],
    "more": False,
}


@pytest.fixture
def repairable(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """An installation with dead letters; a redrive is DONE at the third poll."""
    monkeypatch.setattr("grantwire_cli.following.POLL_SECONDS", 0.001)
    states = ["PENDING", "RUNNING", "DONE"]

    def redrive(call: Call) -> Reply:
        return Reply(200, PREVIEW) if call.body.get("dry_run") else Reply(202, ACCEPTED)

    api.routes[("POST", f"{LETTERS}/redrive")] = redrive
    api.routes[("GET", f"/v1/ops/commands/{COMMAND_ID}")] = lambda _call: Reply(
        200, command(states.pop(0) if len(states) > 1 else states[0])
    )
    return api


def test_status_exits_with_the_state(grantwire: Run, api: FakeApi) -> None:
    """T3: 0 if nothing needs a person, 5 if something does, 3 without a response, 4 without the scope."""
    api.respond("GET", "/v1/ops/status", status())
    healthy = grantwire("status", "--json")
    assert (healthy.code, healthy.json["status"]["state"], healthy.json["error"]) == (0, "OK", None)
    api.respond(
        "GET", "/v1/ops/status", status(state="ATTENTION", problems=[problem("DEAD_LETTERS", "2 open dead letters")])
    )
    attention = grantwire("status")
    assert attention.code == 5
    assert "  ! 2 open dead letters\n" in attention.out
    assert "    try         to do about DEAD_LETTERS\n" in attention.out
    api.faults = [Fault(error(503, "UNAVAILABLE", Retry_After="60"))]
    away = grantwire("status", "--json")
    assert (away.code, away.json["status"], away.json["error"]["code"]) == (3, None, "DATABASE_UNAVAILABLE")
    assert away.json["error"]["message"] == "The API responds, but PostgreSQL is away or too slow."
    assert "Nothing that was confirmed is lost." in away.json["error"]["hint"]
    assert "grantwire status" not in away.json["error"]["hint"]
    api.faults = [Fault(Reply(502, "bad gateway", {"Retry-After": "60"}))]
    assert "PostgreSQL" not in grantwire("status", "--json").json["error"]["message"]
    api.faults = [Fault(error(403, "FORBIDDEN"))]
    assert grantwire("status").code == 4


@pytest.mark.parametrize(("nats_is_alive", "code"), [(True, 0), (False, 5)])
def test_status_of_a_local_stack_needs_every_server(
    run: Run, api: FakeApi, home: Path, monkeypatch: pytest.MonkeyPatch, *, nats_is_alive: bool, code: int
) -> None:
    """T3: exit code 5 if a server is down, although the API responds and reports no problem yet."""
    api.respond("GET", "/v1/ops/status", status())
    (home / "infra" / "local").mkdir(parents=True)
    (home / "template.yaml").touch()
    servers = [
        {"name": name, "title": name, "alive": alive, "pid": 1, "port": 2}
        for name, alive in (("postgres", True), ("nats", nats_is_alive), ("emulator", True))
    ]
    local = {"healthy": nats_is_alive, "api_url": api.url, "servers": servers, "backlog": None}
    (home / "infra" / "local" / "__main__.py").write_text(f"print({json.dumps(json.dumps(local))})")
    (home / ".grantwire").mkdir()
    description = home / ".grantwire" / "stack.json"
    description.touch(mode=0o600)
    description.write_text(json.dumps({"api_url": api.url, "token": TOKEN}))
    monkeypatch.chdir(home)
    result = run("status", "--json")
    assert (result.code, result.json["status"]["state"], result.json["local"]) == (code, "OK", local)


def test_redrive_shows_what_it_would_do_then_follows_the_command(grantwire: Run, repairable: FakeApi) -> None:
    """T3: a dry run, then the change with another key, then polls until the command has ended."""
    result = grantwire(*REDRIVE, "--cause", "status 500", "--rate", "5", "--yes", "--json")
    assert (result.code, result.json["status"]) == (0, "DONE")
    dry, real = [call for call in repairable.calls if call.method == "POST"]
    assert dry.body["dry_run"] is True
    assert "dry_run" not in real.body
    assert dry.key != real.key
    assert real.body["filter"] == {"cause": "status 500"}
    assert (real.body["rate"], real.body["reason"]) == (5, "fixed")
    assert "@" in real.body["actor"]
    assert sum(call.method == "GET" for call in repairable.calls) == 3


@pytest.mark.parametrize(
    ("arguments", "path", "hint"),
    [
        (("dead-letters", "show", "nats", "x"), f"{LETTERS}/nats/x", "grantwire dead-letters list"),
        (("commands", "show", "x"), "/v1/ops/commands/x", "grantwire commands list"),
    ],
)
def test_unknown_id_says_where_the_ids_are(
    grantwire: Run, api: FakeApi, arguments: tuple[str, ...], path: str, hint: str
) -> None:
    """T3: an error says what to try; an id that is empty is wrong usage, and not another route."""
    noun = arguments[0].replace("-", " ").removesuffix("s")
    api.routes[("GET", path)] = lambda _call: Reply(404, {"code": "NOT_FOUND", "message": f"no such {noun}"})
    result = grantwire(*arguments, "--json")
    assert (result.code, result.error["code"]) == (1, "NOT_FOUND")
    assert hint in result.error["hint"]
    empty = grantwire(*arguments[:-1], "", "--json")
    assert (empty.code, empty.error["code"]) == (2, "USAGE")
    assert len(api.calls) == 1


def test_one_dead_letter_is_named_in_the_singular(grantwire: Run, api: FakeApi) -> None:
    """T3: in the groups, and in the question before a change."""
    api.respond("GET", f"{LETTERS}/groups", GROUPS | {"open": 1})
    assert "1 open dead letter on " in grantwire("dead-letters", "groups").err
    api.respond("GET", f"{LETTERS}/groups", GROUPS | {"open": 10000, "capped": True})
    assert "10000 or more open dead letters on " in grantwire("dead-letters", "groups").err
    api.respond("POST", f"{LETTERS}/redrive", PREVIEW | {"selected": 1, "would_change": 1, "skipped": {}})
    assert "1 selected, 1 notification dead letter can be redriven" in grantwire(*REDRIVE, "--all").err


def test_redrive_without_confirmation_changes_nothing(grantwire: Run, repairable: FakeApi) -> None:
    """T3: a dry run and a missing --yes send only the dry run."""
    dry = grantwire(*REDRIVE, "--all", "--dry-run", "--json")
    assert (dry.code, dry.json["would_change"]) == (0, 2)
    assert grantwire(*REDRIVE, "--all").code == 2
    assert [call.body.get("dry_run") for call in repairable.calls] == [True, True]


def test_dead_letters_are_selected_in_one_way(grantwire: Run, api: FakeApi) -> None:
    """T3: none, or two contradicting ones, is wrong usage."""
    for options in ([], ["--all", "--id", "a"], ["--all", "--cause", "c"], ["--id", "a", "--user", "u"]):
        assert grantwire(*REDRIVE, "--yes", *options).code == 2
        refused = grantwire(*REDRIVE, "--yes", *options, "--json")
        assert (refused.code, refused.error["code"]) == (2, "USAGE")
    assert api.calls == []


def test_skipped_dead_letters_and_failed_commands_are_reported(grantwire: Run, repairable: FakeApi) -> None:
    """T3: exit code 5 for skipped ones, 1 for a failed command."""
    path = f"/v1/ops/commands/{COMMAND_ID}"
    progress = {"selected": 2, "done": 1, "skipped": {"not open any more": 1}}
    repairable.respond("GET", path, command("DONE", progress=progress))
    assert grantwire(*REDRIVE, "--all", "--yes").code == 5
    repairable.respond("GET", path, command("FAILED", error="NATS is away"))
    failed = grantwire(*REDRIVE, "--all", "--yes")
    assert failed.code == 1
    assert "NATS is away" in failed.err
    waited = grantwire("commands", "wait", COMMAND_ID)
    assert waited.code == 1


def test_command_that_does_not_end_in_time(grantwire: Run, repairable: FakeApi) -> None:
    """T3: exit code 3, and how to continue."""
    repairable.respond("GET", f"/v1/ops/commands/{COMMAND_ID}", command("RUNNING"))
    result = grantwire("commands", "wait", COMMAND_ID, "--for", "0", "--json")
    assert (result.code, result.error["code"]) == (3, "RUNNING")
    assert "grantwire commands wait" in result.error["hint"]


def test_dead_letters_are_listed_grouped_and_shown(grantwire: Run, api: FakeApi) -> None:
    """T3: filters are passed on, pages are followed, the message is decoded."""
    api.respond("GET", f"{LETTERS}/groups", GROUPS)
    assert str(LETTER["cause"]) in grantwire("dead-letters", "groups").out

    def page(call: Call) -> Reply:
        more = {} if call.query.get("cursor") else {"next_cursor": "c"}
        return Reply(200, {"dead_letters": [LETTER], **more})

    api.routes[("GET", LETTERS)] = page
    listed = grantwire("dead-letters", "list", "--kind", "notification", "--user", "u_123", "--json")
    assert len(listed.json["dead_letters"]) == 2
    expected = {"kind": "notification", "state": "open", "user_id": "u_123", "limit": "50"}
    assert api.calls[-2].query == expected
    assert api.calls[-1].query == expected | {"cursor": "c"}
    api.respond("GET", f"{LETTERS}/notification/{LETTER['dead_letter_id']}", DETAIL)
    shown = grantwire("dead-letters", "show", "notification", str(LETTER["dead_letter_id"]))
    assert "message.decoded.user_id  u_123\n" in shown.out
    assert f"grantwire trace --event-id {EVENT_ID}" in shown.err


@pytest.mark.parametrize(
    ("options", "query"),
    [
        (["--user", "u_1", "--sku", "i"], {"user_id": "u_1", "stock_keeping_unit": "i"}),
        (["--purchase-id", "p"], {"purchase_id": "p"}),
        (["--key", "k"], {"idempotency_key": "k"}),
        (["--trace-id", "t"], {"trace_id": "t"}),
        (["--correlation-id", "r"], {"correlation_id": "r"}),
    ],
)
def test_trace_finds_a_change_by_any_id(
    grantwire: Run, api: FakeApi, options: list[str], query: dict[str, str]
) -> None:
    """T3: each option is the parameter of the API; the steps are in order."""
    api.respond("GET", "/v1/ops/trace", TRACE)
    result = grantwire("trace", *options)
    assert result.code == 0
    assert api.calls[-1].query == query
    assert result.out.index("GRANT applied, version 12") < result.out.index("receiver responded with 200")
    assert "the stored response is no longer kept" in result.err


@pytest.mark.parametrize(("state", "is_shown"), [("OPEN", True), ("REDRIVEN", False)])
def test_trace_of_an_open_dead_letter_says_how_to_redrive_it(
    grantwire: Run, api: FakeApi, state: str, is_shown: bool
) -> None:
    """T2, T3: what to do next, with the id."""
    detail = {"kind": "notification", "dead_letter_id": EVENT_ID, "state": state}
    step = {"stage": "dead_letter", "at": AT, "offset_ms": 1.0, "event_id": EVENT_ID, "summary": "", "detail": detail}
    api.respond("GET", "/v1/ops/trace", TRACE | {"timeline": [step]})
    result = grantwire("trace", "--purchase-id", "p_456")
    assert (f"dead-letters redrive --kind notification --id {EVENT_ID}" in result.err) == is_shown


def test_trace_of_something_unknown(grantwire: Run, api: FakeApi) -> None:
    """T3: exit code 5; a combination that the API refuses is wrong usage."""
    api.respond("GET", "/v1/ops/trace", TRACE | {"changes": [], "timeline": [], "removed": []})
    assert grantwire("trace", "--key", "k").code == 5
    for options in ([], ["--user", "u"], ["--key", "k", "--event-id", "e"], ["--user", "u", "--key", "k"]):
        assert grantwire("trace", *options).code == 2


def test_new_client_and_its_token(grantwire: Run, api: FakeApi) -> None:
    """T3: the token is printed once, on standard output; a replay says that it is not shown again."""
    created = {"client_id": "4k2j9x0q7w1z", "token": "gw_live_x", "expires_at": None}
    api.respond("POST", "/v1/ops/clients", created)
    create = ("clients", "create", "--name", "shop", "--scope", "a", "--scope", "b", "--reason", "new")
    result = grantwire(*create, "--key", "k_1", "--actor", "jane")
    assert "token       gw_live_x\n" in result.out
    assert "gw_live_x" not in result.err
    assert api.calls[-1].body == {"name": "shop", "scopes": ["a", "b"], "actor": "jane", "reason": "new"}
    assert api.calls[-1].key == "k_1"
    api.respond("POST", "/v1/ops/clients", created | {"token": None})
    assert "Rotate the client" in grantwire(*create).err


def test_clients_are_listed_limited_rotated_and_revoked(grantwire: Run, api: FakeApi) -> None:
    """T3: every change needs a reason; revoking asks first."""
    api.respond("GET", "/v1/ops/clients", {"clients": [CLIENT]})
    shop = ["4k2j9x0q7w1z", "shop", "{}", "entitlements:write", "default", "default", "never", "{}"]
    for expires_at, state in (
        (None, "ACTIVE"),
        ("2026-01-08T07:10:00Z", "EXPIRED"),
        ("9999-01-01T00:00:00Z", "ACTIVE"),
    ):
        api.respond("GET", "/v1/ops/clients", {"clients": [CLIENT | {"expires_at": expires_at}]})
        row = "   ".join(shop).format(state, expires_at.replace("T", " ") if expires_at else "never")
        assert row in re.sub(r" {3,}", "   ", grantwire("clients", "list").out)
    path = "/v1/ops/clients/4k2j9x0q7w1z"
    bodies: dict[str, Any] = {"rotate": {"client_id": "c", "token": "t", "expires_at": None}}
    revoked = {"client_id": "c", "revoked": True, "descendants_revoked": 0, "descendants_active": 0}
    bodies |= {"revoke": revoked, "limits": {"client_id": "c", "rate_limit": 5}}
    for action, body in bodies.items():
        api.respond("POST", f"{path}/{action}", body)
        command_line = ("clients", action, "4k2j9x0q7w1z", *(["--yes"] if action == "revoke" else []))
        assert grantwire(*command_line).code == 2
        assert grantwire(*command_line, "--reason", "r").code == 0
    assert grantwire("clients", "revoke", "4k2j9x0q7w1z", "--reason", "r").code == 2
    assert grantwire("clients", "limits", "4k2j9x0q7w1z", "--reason", "r", "--rate-limit", "5").code == 0
    assert api.calls[-1].body["rate_limit"] == 5


def test_client_is_revoked_with_those_below_it(grantwire: Run, api: FakeApi) -> None:
    """G11: only if asked for; otherwise the command says how many are left."""
    revoked = {"client_id": "c", "revoked": True, "descendants_revoked": 0, "descendants_active": 2}
    api.respond("POST", "/v1/ops/clients/4k2j9x0q7w1z/revoke", revoked)
    revoke = ("clients", "revoke", "4k2j9x0q7w1z", "--yes", "--reason", "r", "--actor", "jane")
    assert "2 clients below it are not revoked" in grantwire(*revoke).err
    assert api.calls[-1].body == {"actor": "jane", "reason": "r"}
    api.respond("POST", "/v1/ops/clients/4k2j9x0q7w1z/revoke", revoked | {"descendants_active": 0})
    assert "--with-descendants" not in grantwire(*revoke, "--with-descendants").err
    assert api.calls[-1].body["with_descendants"] is True


OWN_CLIENT = {
    "client_id": "4k2j9x0q7w1z",
    "name": "shop",
    "state": "ACTIVE",
    "scopes": ["ops:read"],
    "created_by": None,
    "expires_at": None,
    "revoked_at": None,
    "token_expires_at": None,
    "rate_limit": 200,
    "burst_limit": 400,
}


@pytest.mark.parametrize(
    ("change", "code", "advice"),
    [
        ({}, 0, ""),
        ({"token_expires_at": AT}, 0, "replaced by a rotation"),
        ({"state": "EXPIRED", "expires_at": AT, "token_expires_at": AT}, 4, "--expires-in"),
        ({"state": "REVOKED", "revoked_at": AT}, 4, "a new client"),
    ],
)
def test_owner_of_a_token_sees_what_is_wrong_with_it(
    grantwire: Run, api: FakeApi, change: dict[str, Any], code: int, advice: str
) -> None:
    """T10: state and scopes are on standard output, and what to do on standard error."""
    api.respond("GET", "/v1/me", OWN_CLIENT | change)
    result = grantwire("whoami")
    assert result.code == code
    assert "scopes            ops:read\n" in result.out
    assert advice in result.err
    assert json.loads(grantwire("whoami", "--json").out) == OWN_CLIENT | change


def test_unknown_token_is_told_apart_from_a_missing_scope(grantwire: Run, api: FakeApi) -> None:
    """T10: a token that the installation does not know; other commands say which command tells."""
    api.respond(
        "GET", "/v1/me", {"code": "FORBIDDEN", "message": "invalid token or missing required scope"}, status=403
    )
    result = grantwire("whoami")
    assert result.code == 4
    assert "does not know this token" in result.err
    api.respond("GET", "/v1/ops/clients", {"code": "FORBIDDEN", "message": "missing required scope x"}, status=403)
    assert "grantwire whoami" in grantwire("clients", "list").err


@pytest.mark.parametrize(("found", "code"), [({"wrong": 0, "behind": 3}, 0), ({"wrong": 1}, 5), ({"ahead": 1}, 5)])
def test_verify_exits_with_the_differences(grantwire: Run, api: FakeApi, found: dict[str, int], code: int) -> None:
    """T3: rows that wait for an event are no difference."""
    api.respond("POST", "/v1/ops/read-model/verify", ACCEPTED, status=202)
    result = {"source": "record", "dry_run": True, "found": found}
    api.respond("GET", f"/v1/ops/commands/{COMMAND_ID}", command("DONE", kind="read_model.verify", result=result))
    assert grantwire("read-model", "verify", "--reason", "nightly").code == code


def test_rebuild_asks_first(grantwire: Run, api: FakeApi) -> None:
    """T3: nothing is sent without --yes."""
    assert grantwire("read-model", "rebuild", "--reason", "r").code == 2
    assert api.calls == []


def test_rebuild_from_the_stream_sends_its_fields(grantwire: Run, api: FakeApi) -> None:
    """T3, P2: and prints the counts of the result."""
    api.respond("POST", "/v1/ops/read-model/rebuild", ACCEPTED, status=202)
    result = {"source": "stream", "from_sequence": 7, "reached": 9, "changed": 2, "complete": True}
    api.respond("GET", f"/v1/ops/commands/{COMMAND_ID}", command("DONE", kind="read_model.rebuild", result=result))
    arguments = ("read-model", "rebuild", "--source", "stream", "--from-sequence", "7", "--reason", "r", "--yes")
    done = grantwire(*arguments)
    assert (done.code, "changed" in done.out) == (0, True)
    (posted,) = [call for call in api.calls if call.method == "POST"]
    assert (posted.body["source"], posted.body["from_sequence"]) == ("stream", 7)
    assert grantwire("read-model", "rebuild", "--from-sequence", "7", "--reason", "r", "--yes").code == 2


def test_commands_are_listed(grantwire: Run, api: FakeApi) -> None:
    """T3: the status is passed on."""
    api.respond("GET", "/v1/ops/commands", {"commands": [command("DONE")]})
    result = grantwire("commands", "list", "--status", "DONE")
    assert "2 of 2" in result.out
    assert api.calls[-1].query["status"] == "DONE"
