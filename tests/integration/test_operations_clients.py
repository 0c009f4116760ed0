"""T1: administration of clients in the operations API, with the role of the administration of clients."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.clients.tokens import Token
from grantwire.wiring.routes.authorize_caller import CallerRuntime
from tests.support.client_administration import CLIENTS, LIMITS, OPERATOR, REVOKE, ROTATE, Administration
from tests.support.concurrency import run_concurrently
from tests.support.plaintext import PLAINTEXT
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows
    from tests.support.client import Response

SELECT_CREATED = "SELECT * FROM api_clients WHERE created_by IS NOT NULL"
SHOP = {"name": "shop", "scopes": ["entitlements:write"], **OPERATOR}


@pytest.fixture
def administration(clients_url: str) -> Iterator[Administration]:
    """Caller of the function."""
    with Administration(clients_url) as administration:
        yield administration


def test_client_is_created_once_and_its_token_is_stored_nowhere(administration: Administration, rows: Rows) -> None:
    """T1, G4: a repeat creates no second client and shows no token; the action is recorded with its source."""
    created, repeated = (administration.send(CLIENTS, SHOP) for _ in range(2))
    assert (created.status, created.replayed, repeated.replayed) == (200, False, True)
    token = Token.from_header(f"Bearer {created.json['token']}")
    assert repeated.json == created.json | {"token": None}
    (client,) = rows.execute(SELECT_CREATED).fetchall()
    assert (client["client_id"], client["token_hash"]) == (token.client_id, token.hash)
    assert client["created_by"] == administration.admin
    (stored,) = rows.execute("SELECT response_body FROM idempotency_keys").fetchall()
    assert token.secret not in stored["response_body"]
    *_, action = rows.execute("SELECT * FROM operator_actions ORDER BY occurred_at").fetchall()
    assert action["source"].startswith(f"client {administration.admin}, request ")
    assert (action["action"], action["actor"], action["client_id"]) == ("create", "ann", token.client_id)


def test_concurrent_requests_with_one_key_create_one_client(
    administration: Administration, clients_url: str, rows: Rows
) -> None:
    """T1: exactly one response has the token."""

    def create(_: int) -> Response:
        with Administration(clients_url, administration.admin) as other:
            return other.send(CLIENTS, SHOP)

    responses = run_concurrently(6, create)
    assert sum(response.json["token"] is not None for response in responses) == 1
    assert len({response.json["client_id"] for response in responses}) == 1
    assert rows.execute(SELECT_CREATED).rowcount == 1


def test_client_is_rotated_limited_and_revoked(administration: Administration, rows: Rows) -> None:
    """T1: each leaves its action, and the list shows the result without a token."""
    created = administration.send(CLIENTS, SHOP).json
    client_id = created["client_id"]
    rotated = administration.send(ROTATE, {"overlap": "1h", **OPERATOR}, client_id=client_id)
    assert rotated.json["token"] not in {None, created["token"]}
    assert administration.send(ROTATE, {"overlap": "1h", **OPERATOR}, client_id=client_id).json["token"] is None
    limits = administration.send(LIMITS, {"rate_limit": 5, "burst_limit": 9, **OPERATOR}, client_id=client_id)
    assert limits.json == {"client_id": client_id, "rate_limit": 5, "burst_limit": 9}
    revoked = administration.send(REVOKE, OPERATOR, client_id=client_id)
    none = {"descendants_revoked": 0, "descendants_active": 0}
    assert revoked.json == {"client_id": client_id, "revoked": True, **none}
    admin, client = administration.send(CLIENTS).json["clients"]
    assert (admin["created_by"], client["created_by"]) == (None, administration.admin)
    assert (client["name"], client["scopes"], client["rate_limit"]) == ("shop", ["entitlements:write"], 5)
    assert None not in {client["revoked_at"], client["rotated_at"], client["previous_until"]}
    assert "token_hash" not in client
    done = rows.execute("SELECT action FROM operator_actions ORDER BY occurred_at").fetchall()
    assert [row["action"] for row in done] == ["create", "create", "rotate", "limits", "revoke"]


def test_one_key_for_two_clients_is_a_conflict(administration: Administration) -> None:
    """T1: the path is part of the request, so that a key of one client cannot replay the response of another."""
    ids = [administration.send(CLIENTS, SHOP | {"name": name}, key=name).json["client_id"] for name in ("one", "two")]
    assert administration.send(REVOKE, OPERATOR, client_id=ids[0]).status == 200
    assert administration.send(REVOKE, OPERATOR, client_id=ids[1]).code == "IDEMPOTENCY_KEY_CONFLICT"


def test_existing_name_is_a_conflict(administration: Administration) -> None:
    """T1: it is not stored, so the same key works after the other client was revoked."""
    client_id = administration.send(CLIENTS, SHOP).json["client_id"]
    assert administration.send(CLIENTS, SHOP, key="k2").code == "CLIENT_EXISTS"
    administration.send(REVOKE, OPERATOR, client_id=client_id)
    assert administration.send(CLIENTS, SHOP, key="k2").status == 200


@newest_postgres
@pytest.mark.parametrize(
    ("path", "client_id", "body", "code"),
    [
        (CLIENTS, None, {**OPERATOR}, "BAD_REQUEST"),
        (CLIENTS, None, SHOP | {"scopes": ["root"]}, "BAD_REQUEST"),
        (CLIENTS, None, SHOP | {"action": "list"}, "BAD_REQUEST"),
        (CLIENTS, None, SHOP | {"client_id": "0123456789ab"}, "BAD_REQUEST"),
        (CLIENTS, None, {"name": "shop", "scopes": ["ops:read"]}, "BAD_REQUEST"),
        (CLIENTS, None, SHOP | {"expires_in": "1 year"}, "BAD_REQUEST"),
        (LIMITS, "0123456789ab", {"rate_limit": 0, **OPERATOR}, "BAD_REQUEST"),
        (LIMITS, "0123456789ab", OPERATOR, "NOT_FOUND"),
        (ROTATE, "0123456789ab", OPERATOR, "NOT_FOUND"),
        (REVOKE, "UPPER", OPERATOR, "NOT_FOUND"),
        (REVOKE, "0123456789ab", OPERATOR | {"with_descendants": "yes"}, "BAD_REQUEST"),
    ],
)
def test_invalid_requests_are_refused(
    administration: Administration, rows: Rows, path: str, client_id: str | None, body: Any, code: str
) -> None:
    """T1: with the code of the API, and nothing is stored."""
    assert administration.send(path, body, client_id=client_id).code == code
    assert rows.execute("SELECT FROM idempotency_keys").fetchall() == []
    assert administration.send(CLIENTS, SHOP, key=None).code == "BAD_REQUEST"
    assert administration.send(CLIENTS, scopes="ops:read ops:write clients:write").code == "FORBIDDEN"
    assert administration.send(CLIENTS, SHOP, scopes="clients:read").code == "FORBIDDEN"


def test_role_of_clients_reads_no_stored_response_of_other_routes(clients_url: str) -> None:
    """G3: its SQL functions accept only its own routes."""
    with psycopg.connect(clients_url, autocommit=True) as connection:
        for statement in (
            "SELECT client_request_begin('c', 'POST /v1/entitlements/grants', 'k', 'h', 100)",
            "SELECT client_request_finish('c', 'POST /v1/entitlements/grants', 'k', 'h', 200, '{}', '1h')",
            "SELECT * FROM idempotency_keys",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


@pytest.mark.parametrize(("role", "is_recorded"), [("clients", False), ("functions", True)])
def test_last_use_is_recorded_only_by_the_role_that_may(
    administration: Administration,
    urls: dict[str, str],
    rows: Rows,
    capsys: pytest.CaptureFixture[str],
    role: str,
    is_recorded: bool,
) -> None:
    """G4: a function that authenticates its callers with the role for clients does not try, and writes no warning."""
    token = administration.send(CLIENTS, SHOP).json["token"]
    environ = {**PLAINTEXT, "DATABASE_URL": urls[role], "TOKEN_ENVIRONMENT": "test"}
    capsys.readouterr()
    with contextlib.closing(CallerRuntime.build(environ)) as callers:
        assert callers.authorizer.decide(f"Bearer {token}").reason == "allowed"
    assert "WARNING" not in capsys.readouterr().out
    assert rows.execute("SELECT FROM api_clients WHERE last_used_at IS NOT NULL").rowcount == is_recorded


@pytest.fixture
def urls(clients_url: str, database_url: str) -> dict[str, str]:
    """The login of each role."""
    return {"clients": clients_url, "functions": database_url}
