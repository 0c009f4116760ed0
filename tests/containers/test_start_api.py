"""S2: `sam local start-api` serves every route as the deployed API does."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.clients.scopes import Scope
from grantwire.clients.tokens import Token, generate_client_id
from grantwire.runtime.clients import CallerRuntime
from tests.containers.conftest import environment
from tests.e2e.http import Http
from tests.support.client import CHANGE, GRANTS, INBOX, REVOKES, SUMMARY
from tests.support.contract import assert_matches_contract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.containers.sandbox import Sandbox
    from tests.support.servers import Databases


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """The API's database."""
    url = databases.migrated()
    yield url
    databases.drop(url)


@pytest.fixture(scope="module")
def http(sandbox: Sandbox, database_url: str, nats_url: str) -> Iterator[Http]:
    """A client of the API, who may do everything; it holds each answer against openapi.yaml."""
    environ = environment(database_url, nats_url)
    runtime = CallerRuntime.build(environ)
    token = runtime.clients.create("tests", list(Scope)).token
    runtime.close()
    with sandbox.api(environ) as address:
        yield Http(address, token.text)


@pytest.fixture
def user() -> str:
    """Somebody new."""
    return f"u_{uuid.uuid4()}"


def test_a_repeat_of_a_grant_is_the_same_answer(http: Http, database_url: str, user: str) -> None:
    """E1, I1: byte for byte, and one event."""
    first, second = (http.grant(f"{user}-1", user_id=user) for _ in range(2))
    assert (first.status, first.replayed) == (200, False)
    assert (second.status, second.replayed, second.body) == (200, True, first.body)
    select = "SELECT FROM outbox_events WHERE payload ->> 'user_id' = %s"
    with psycopg.connect(database_url) as connection:
        assert connection.execute(select, (user,)).rowcount == 1


def test_the_same_key_with_another_body_is_a_conflict(http: Http, user: str) -> None:
    """I3."""
    http.grant(f"{user}-1", user_id=user)
    reply = http.grant(f"{user}-1", user_id=user, stock_keeping_unit="item2")
    assert (reply.status, reply.code) == (409, "IDEMPOTENCY_KEY_CONFLICT")


def test_a_second_grant_of_a_right_is_a_conflict(http: Http, user: str) -> None:
    """E4."""
    http.grant(f"{user}-1", user_id=user)
    reply = http.grant(f"{user}-2", user_id=user)
    assert (reply.status, reply.code) == (409, "ENTITLEMENT_STATE_CONFLICT")


def test_a_revoked_right_is_listed_as_revoked(http: Http, user: str) -> None:
    """E2, E3."""
    http.grant(f"{user}-1", user_id=user)
    assert http.revoke(f"{user}-2", user_id=user).json["version"] == 2
    (right,) = http.list_entitlements(user).json["entitlements"]
    assert (right["status"], right["version"]) == ("REVOKED", 2)


def test_the_summary_answers(http: Http, user: str) -> None:
    """P1: no event was bridged here."""
    reply = http.send("GET", SUMMARY.replace("{user_id}", user))
    assert_matches_contract("GET", SUMMARY, reply.status, reply.headers, reply.body)
    assert (reply.status, reply.json["active"], reply.json["last_change"]) == (200, 0, None)


def test_the_inbox_answers(http: Http, user: str) -> None:
    """D4: switched on here; nobody was told anything yet."""
    reply = http.send("GET", INBOX.replace("{user_id}", user))
    assert_matches_contract("GET", INBOX, reply.status, reply.headers, reply.body)
    assert (reply.status, reply.json) == (200, {"user_id": user, "notifications": []})


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        (GRANTS, [], json.dumps(CHANGE)),
        (REVOKES, [("Idempotency-Key", "bad")], "not JSON"),
        (GRANTS, [("Idempotency-Key", "bad")], "{}"),
    ],
    ids=["no key", "not JSON", "no fields"],
)
def test_bad_input_gets_a_code(http: Http, path: str, headers: list[tuple[str, str]], body: str) -> None:
    """E5."""
    reply = http.send("POST", path, [("Content-Type", "application/json"), *headers], body)
    assert_matches_contract("POST", path, reply.status, reply.headers, reply.body)
    assert (reply.status, reply.code) == (400, "BAD_REQUEST")


def test_nobody_gets_in_without_a_token(http: Http, database_url: str, user: str) -> None:
    """E5: 401 without one, 403 with one that nobody made; nothing is written."""
    http.list_entitlements(user)
    stranger = Token.mint("dev", generate_client_id())
    asked = [("Idempotency-Key", user), ("Content-Type", "application/json")]
    for token, status in (("", 401), (stranger.text, 403)):
        reply = Http(http.url, token).send("POST", GRANTS, asked, json.dumps(CHANGE | {"user_id": user}))
        assert reply.status == status
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT FROM entitlements WHERE user_id = %s", (user,)).rowcount == 0


def test_another_method_is_refused(http: Http) -> None:
    """E5: by the function itself, which says what the path takes."""
    reply = http.send("DELETE", GRANTS)
    assert_matches_contract("DELETE", GRANTS, reply.status, reply.headers, reply.body)
    assert reply.status == 405
