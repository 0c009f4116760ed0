"""S2: `sam local start-api` serves every route as the deployed API does."""

from __future__ import annotations

import contextlib
import json
import uuid
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.clients.scopes import Scope
from grantwire.clients.tokens import Token, generate_client_id
from grantwire.operator_actions import Operator
from grantwire.wiring.tasks.manage_clients import ClientsRuntime
from tests.containers.conftest import environment
from tests.e2e.http import Http
from tests.support.client import CHANGE, GRANTS, INBOX, REVOKES, SUMMARY
from tests.support.contract import assert_matches_contract
from tests.support.module_database import database_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.containers.sandbox import Sandbox
    from tests.support.servers import Databases

__all__ = ["database_url"]


@pytest.fixture(scope="module")
def http(sandbox: Sandbox, databases: Databases, database_url: str, nats_url: str) -> Iterator[Http]:
    """A client of the API with all scopes."""
    environ = environment(database_url, nats_url)
    clients = ClientsRuntime.build(environ | {"DATABASE_URL": databases.url_for_clients(database_url)})
    with contextlib.closing(clients) as runtime:
        token = runtime.clients.create(Operator("ann", "a test", "tests"), "tests", list(Scope)).token
    with sandbox.api(environ) as address:
        yield Http(address, token.text)


@pytest.fixture
def user() -> str:
    """A new user."""
    return f"u_{uuid.uuid4()}"


def test_replay_returns_stored_response_byte_for_byte(http: Http, database_url: str, user: str) -> None:
    """E1, I1: there is one event for both requests."""
    first, second = (http.grant(f"{user}-1", user_id=user) for _ in range(2))
    assert (first.status, first.replayed) == (200, False)
    assert (second.status, second.replayed, second.body) == (200, True, first.body)
    select = "SELECT FROM outbox_events WHERE payload ->> 'user_id' = %s"
    with psycopg.connect(database_url) as connection:
        assert connection.execute(select, (user,)).rowcount == 1


def test_same_key_with_another_body_is_a_key_conflict(http: Http, user: str) -> None:
    """I3: the response is 409 with the code of a key conflict."""
    http.grant(f"{user}-1", user_id=user)
    response = http.grant(f"{user}-1", user_id=user, stock_keeping_unit="item2")
    assert (response.status, response.code) == (409, "IDEMPOTENCY_KEY_CONFLICT")


def test_second_grant_of_an_entitlement_is_a_state_conflict(http: Http, user: str) -> None:
    """E4: the response is 409 with the code of a state conflict."""
    http.grant(f"{user}-1", user_id=user)
    response = http.grant(f"{user}-2", user_id=user)
    assert (response.status, response.code) == (409, "ENTITLEMENT_STATE_CONFLICT")


def test_revoked_entitlement_is_listed_as_revoked(http: Http, user: str) -> None:
    """E2, E3: it is listed with its new version."""
    http.grant(f"{user}-1", user_id=user)
    assert http.revoke(f"{user}-2", user_id=user).json["version"] == 2
    (entitlement,) = http.list_entitlements(user).json["entitlements"]
    assert (entitlement["status"], entitlement["version"]) == ("REVOKED", 2)


def test_summary_of_a_new_user_is_empty(http: Http, user: str) -> None:
    """P1: no event was bridged here."""
    response = http.send("GET", SUMMARY.replace("{user_id}", user))
    assert_matches_contract("GET", SUMMARY, response.status, response.headers, response.body)
    assert (response.status, response.json["active"], response.json["last_change"]) == (200, 0, None)


def test_inbox_of_a_new_user_is_empty(http: Http, user: str) -> None:
    """D4: the route is enabled here; there is no notification yet."""
    response = http.send("GET", INBOX.replace("{user_id}", user))
    assert_matches_contract("GET", INBOX, response.status, response.headers, response.body)
    assert (response.status, response.json) == (200, {"user_id": user, "notifications": []})


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        (GRANTS, [], json.dumps(CHANGE)),
        (REVOKES, [("Idempotency-Key", "bad")], "not JSON"),
        (GRANTS, [("Idempotency-Key", "bad")], "{}"),
    ],
    ids=["no key", "not JSON", "no fields"],
)
def test_bad_input_is_refused_with_an_error_code(
    http: Http, path: str, headers: list[tuple[str, str]], body: str
) -> None:
    """E5: the response is 400 with a code."""
    response = http.send("POST", path, [("Content-Type", "application/json"), *headers], body)
    assert_matches_contract("POST", path, response.status, response.headers, response.body)
    assert (response.status, response.code) == (400, "BAD_REQUEST")


def test_request_without_a_valid_token_is_refused(http: Http, database_url: str, user: str) -> None:
    """E5: 401 without a token, 403 with the token of an unknown client; nothing is written."""
    http.list_entitlements(user)
    unknown = Token.mint("dev", generate_client_id())
    headers = [("Idempotency-Key", user), ("Content-Type", "application/json")]
    for token, status in (("", 401), (unknown.text, 403)):
        response = Http(http.url, token).send("POST", GRANTS, headers, json.dumps(CHANGE | {"user_id": user}))
        assert response.status == status
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT FROM entitlements WHERE user_id = %s", (user,)).rowcount == 0


def test_unsupported_method_is_refused(http: Http) -> None:
    """E5: the function itself responds with 405 and the allowed methods."""
    response = http.send("DELETE", GRANTS)
    assert_matches_contract("DELETE", GRANTS, response.status, response.headers, response.body)
    assert response.status == 405
