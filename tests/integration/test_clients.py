"""Service clients: creation, rotation, expiry, revocation, and what the authorizer decides meanwhile."""

from __future__ import annotations

import json
import stat
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from functions.authorize_caller.handler import handler as authorize_caller
from functions.manage_clients.handler import handle
from grantwire.api.authorizer import AuthorizerHandler
from grantwire.clients.commands import ClientCommand
from grantwire.clients.scopes import Scope
from grantwire.clients.tokens import Token
from grantwire.errors import NotFoundError, RejectedError, RetryableError
from grantwire.observability import logger
from grantwire.operator_actions import Operator
from grantwire.wiring.routes.authorize_caller import CallerRuntime
from grantwire.wiring.tasks.handler import TaskHandler
from grantwire.wiring.tasks.manage_clients import ClientsRuntime
from infra.local.stack.development_client import development_token
from infra.operators import clients as command
from tests.support.client import CHANGE
from tests.support.concurrency import run_concurrently
from tests.support.module_database import database_url
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows
    from tests.support.client import Client

__all__ = ["database_url"]

ARN = "arn:aws:execute-api:eu-central-1:123456789012:abcdef1234/prod/GET/v1/users/u/entitlements"
WRITE, READ = Scope.WRITE_ENTITLEMENTS, Scope.READ_ENTITLEMENTS
SELECT_CLIENT = "SELECT * FROM api_clients WHERE client_id = %s"


OPERATOR = Operator("ann", "a test", "tests")
ACTOR_AND_REASON = {"actor": OPERATOR.actor, "reason": OPERATOR.reason}


class Runtimes:
    """The runtimes of authorize_caller and manage_clients, each with its own database role."""

    def __init__(self, database_url: str, clients_url: str, environment: str = "dev", **environ: str) -> None:
        settings = {**PLAINTEXT, "TOKEN_ENVIRONMENT": environment, **environ}
        self._callers = CallerRuntime.build({**settings, "DATABASE_URL": database_url})
        self.administration = ClientsRuntime.build({**settings, "DATABASE_URL": clients_url})
        self.authorizer = self._callers.authorizer
        self.clients = self.administration.clients

    def close(self) -> None:
        """Close both connections."""
        self._callers.close()
        self.administration.close()


@pytest.fixture
def runtime(database_url: str, clients_url: str, rows: Rows) -> Iterator[Runtimes]:
    """The runtimes of both functions, without any clients."""
    rows.execute("DELETE FROM api_clients")
    runtime = Runtimes(database_url, clients_url)
    yield runtime
    runtime.close()


def create_client(runtime: Runtimes, name: str = "shop", *scopes: Scope, lifetime: timedelta | None = None) -> Token:
    """Create a client and return its token."""
    return runtime.clients.create(OPERATOR, name, scopes or (WRITE,), lifetime).token


def is_allowed(runtime: Runtimes, token: Token) -> bool:
    """Return whether the policy for this token allows any route but `GET /v1/me`, which its owner may always use."""
    policy = runtime.authorizer.authorize(f"Bearer {token.text}", ARN)
    return bool(policy["context"]["scopes"])


def test_new_client_is_allowed_with_its_scopes(runtime: Runtimes, rows: Rows) -> None:
    """The database stores only a hash of the token."""
    token = create_client(runtime, "shop", WRITE, READ)
    policy = runtime.authorizer.authorize(f"Bearer {token.text}", ARN)
    assert (policy["principalId"], policy["context"]["scopes"]) == (
        token.client_id,
        "entitlements:read entitlements:write",
    )
    row = rows.execute(SELECT_CLIENT, (token.client_id,)).fetchone()
    assert token.secret not in json.dumps(row, default=str)
    assert row is not None
    assert (row["token_hash"], row["previous_hash"], row["expires_at"]) == (token.hash, None, None)


def test_unknown_tokens_are_denied(runtime: Runtimes) -> None:
    """A wrong secret, an unknown client id, a token of another environment, and the id of another client."""
    token, other = create_client(runtime), create_client(runtime, "other")
    assert not is_allowed(runtime, Token.mint("dev", token.client_id))
    assert not is_allowed(runtime, Token("dev", "0" * 12, token.secret))
    assert not is_allowed(runtime, Token("live", token.client_id, token.secret))
    assert not is_allowed(runtime, Token("dev", other.client_id, token.secret))
    assert is_allowed(runtime, token)


def test_rotation_keeps_the_client_id_and_two_valid_tokens(runtime: Runtimes, rows: Rows) -> None:
    """I7: the client id stays. The previous token ends after its overlap; an older token ends immediately."""
    first = create_client(runtime)
    second = runtime.clients.rotate(OPERATOR, first.client_id, timedelta(hours=1)).token
    assert (is_allowed(runtime, first), is_allowed(runtime, second)) == (True, True)
    third = runtime.clients.rotate(OPERATOR, first.client_id, timedelta(hours=1)).token
    assert [is_allowed(runtime, token) for token in (first, second, third)] == [False, True, True]
    rows.execute("UPDATE api_clients SET previous_until = now() - interval '1 second'")
    assert [is_allowed(runtime, token) for token in (second, third)] == [False, True]
    assert len({token.client_id for token in (first, second, third)}) == 1


def test_rotation_without_overlap_ends_the_leaked_token_immediately(runtime: Runtimes) -> None:
    """API Gateway denies the leaked token when its cached policy has expired."""
    leaked = create_client(runtime)
    fresh = runtime.clients.rotate(OPERATOR, leaked.client_id, timedelta(0)).token
    assert (is_allowed(runtime, leaked), is_allowed(runtime, fresh)) == (False, True)


def test_concurrent_rotations_leave_two_valid_tokens(runtime: Runtimes, database_url: str, clients_url: str) -> None:
    """Rotations run one after the other; only the last two tokens are valid."""
    token = create_client(runtime)

    def rotate(_number: int) -> Token:
        own_runtime = Runtimes(database_url, clients_url)
        try:
            return own_runtime.clients.rotate(OPERATOR, token.client_id, timedelta(hours=1)).token
        finally:
            own_runtime.close()

    tokens = [token, *run_concurrently(6, rotate)]
    assert sum(is_allowed(runtime, token) for token in tokens) == 2
    assert not is_allowed(runtime, token)


def test_revoked_client_stays_denied(runtime: Runtimes, rows: Rows) -> None:
    """Both tokens are denied and a rotation is rejected. The row stays for the audit; its name can be used again."""
    first = create_client(runtime)
    second = runtime.clients.rotate(OPERATOR, first.client_id, timedelta(hours=1)).token
    runtime.clients.revoke(OPERATOR, first.client_id)
    revoked = rows.execute(SELECT_CLIENT, (first.client_id,)).fetchone()
    runtime.clients.revoke(OPERATOR, first.client_id)
    assert rows.execute(SELECT_CLIENT, (first.client_id,)).fetchone() == revoked
    assert (is_allowed(runtime, first), is_allowed(runtime, second)) == (False, False)
    with pytest.raises(NotFoundError, match="revoked"):
        runtime.clients.rotate(OPERATOR, first.client_id, timedelta(0))
    successor = create_client(runtime, "shop")
    assert is_allowed(runtime, successor)
    assert successor.client_id != first.client_id


def test_client_expires(runtime: Runtimes, rows: Rows) -> None:
    """The clock of the database decides. Only a rotation with a new lifetime makes the client valid again."""
    token = create_client(runtime, lifetime=timedelta(days=90))
    assert is_allowed(runtime, token)
    rows.execute("UPDATE api_clients SET created_at = now() - interval '2 days', expires_at = now()")
    assert not is_allowed(runtime, token)
    with pytest.raises(NotFoundError, match="needs expires_in"):
        runtime.clients.rotate(OPERATOR, token.client_id, timedelta(0))
    issued = runtime.clients.rotate(OPERATOR, token.client_id, timedelta(0), timedelta(days=1))
    assert issued.expires_at is not None
    assert is_allowed(runtime, issued.token)


@pytest.mark.usefixtures("runtime")
def test_concurrent_creations_with_one_name_create_one_client(rows: Rows, database_url: str, clients_url: str) -> None:
    """One creation succeeds; each other one gets an error that names the client."""

    def create(_number: int) -> str:
        own_runtime = Runtimes(database_url, clients_url)
        try:
            return create_client(own_runtime, "shop").client_id
        except RejectedError as error:
            return str(error)
        finally:
            own_runtime.close()

    results = run_concurrently(6, create)
    assert results.count('client "shop" already exists') == 5
    assert rows.execute("SELECT FROM api_clients").rowcount == 1


@pytest.mark.parametrize("action", ["rotate", "revoke"])
def test_unknown_client_id_is_not_found(runtime: Runtimes, action: str) -> None:
    """This holds for any text as client id."""
    for client_id in ("0" * 12, "'; DROP--", "%s"):
        with pytest.raises(NotFoundError):
            ClientCommand.parse({"action": action, "client_id": client_id, **ACTOR_AND_REASON}).execute(
                runtime.clients, OPERATOR.source
            )


def test_last_use_is_recorded_at_most_once_a_minute(runtime: Runtimes, rows: Rows) -> None:
    """Otherwise each request would cause a write."""
    token = create_client(runtime)
    select = "SELECT last_used_at FROM api_clients"
    assert is_allowed(runtime, token)
    (first,) = rows.execute(select).fetchall()
    assert is_allowed(runtime, token)
    assert rows.execute(select).fetchall() == [first]
    rows.execute("UPDATE api_clients SET last_used_at = now() - interval '61 seconds'")
    assert is_allowed(runtime, token)
    (later,) = rows.execute(select).fetchall()
    assert later["last_used_at"] > first["last_used_at"]


def test_locked_client_does_not_delay_requests(
    runtime: Runtimes, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last use is skipped if the row is locked. A wait would end in the statement timeout and a warning."""
    token = create_client(runtime)
    with rows.transaction():
        rows.execute("SELECT FROM api_clients FOR UPDATE")
        assert is_allowed(runtime, token)
    assert "WARNING" not in capsys.readouterr().out
    assert rows.execute("SELECT FROM api_clients WHERE last_used_at IS NULL").rowcount == 1


def test_requests_are_denied_while_postgresql_is_down_and_allowed_afterwards(server: PostgresServer) -> None:
    """A warm function recovers on its own when the server is back."""
    runtime = Runtimes(server.url(), server.url(), DATABASE_STATEMENT_TIMEOUT="1s")
    token = create_client(runtime, "outage")
    handler = AuthorizerHandler("authorize_caller", lambda _: runtime, lambda rt, *args: rt.authorizer.authorize(*args))
    event = {"type": "TOKEN", "authorizationToken": f"Bearer {token.text}", "methodArn": ARN}
    try:
        assert handler(event, None)["principalId"] == token.client_id
        server.stop()
        try:
            for _ in range(2):
                with pytest.raises(RetryableError):
                    handler(event, None)
        finally:
            server.start()
        assert handler(event, None)["policyDocument"]["Statement"][0]["Effect"] == "Allow"
    finally:
        runtime.close()
    assert isinstance(authorize_caller, AuthorizerHandler)


def test_manage_clients_returns_the_token_but_does_not_log_it(
    runtime: Runtimes, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log has the action and the client id."""
    handler = TaskHandler("manage_clients", lambda _: runtime.administration, handle, secret_result=True)
    creation = {"action": "create", "name": "shop", "scopes": ["ops:read"], "expires_in": "90d"}
    created = handler(creation | ACTOR_AND_REASON, None)
    rotated = handler({"action": "rotate", "client_id": created["client_id"], **ACTOR_AND_REASON}, None)
    (listed,) = handler({"action": "list"}, None)["clients"]
    handler({"action": "revoke", "client_id": created["client_id"], **ACTOR_AND_REASON}, None)
    assert (listed["client_id"], listed["name"], listed["scopes"]) == (created["client_id"], "shop", ["ops:read"])
    assert listed["expires_at"] == created["expires_at"] == rotated["expires_at"]
    assert not {"token_hash", "previous_hash", "token"} & listed.keys()
    logged = capsys.readouterr().out
    for token in (created["token"], rotated["token"]):
        assert token.rpartition("_")[2] not in logged
    assert ACTOR_AND_REASON["reason"] not in logged  # G14: a reason is text of a person, kept in operator_actions only
    lines = [line for line in map(json.loads, logged.splitlines()) if line["message"] == "client command executed"]
    assert [(line["action"], line["client_id"]) for line in lines] == [
        (action, created["client_id"]) for action in ("create", "rotate", "revoke")
    ]


def test_same_key_of_another_caller_is_a_different_key(client: Client, rows: Rows) -> None:
    """I7, A1: a caller never gets the stored response of another caller; the audit has both requests."""
    rows.execute("TRUNCATE entitlements, idempotency_keys, entitlement_audit, outbox_events")
    first = client.grant("key", caller="aaaaaaaaaaaa")
    second = client.grant("key", caller="bbbbbbbbbbbb")
    assert (first.status, second.status, second.replayed) == (200, 409, False)
    assert (second.code, second.body) != (first.code, first.body)
    assert client.grant("key", caller="aaaaaaaaaaaa").body == first.body
    audit = rows.execute("SELECT caller, outcome FROM entitlement_audit WHERE user_id = %s", (CHANGE["user_id"],))
    assert {tuple(row.values()) for row in audit} == {
        ("aaaaaaaaaaaa", "APPLIED"),
        ("bbbbbbbbbbbb", "ENTITLEMENT_STATE_CONFLICT"),
    }


@pytest.fixture
def _operator_environment(monkeypatch: pytest.MonkeyPatch, clients_url: str) -> None:
    """Set the environment variables of an operator, with the database of the test."""
    for name, value in {**PLAINTEXT, "DATABASE_URL": clients_url, "TOKEN_ENVIRONMENT": "dev"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("_operator_environment")
def test_program_creates_the_first_client(runtime: Runtimes, rows: Rows, capsys: pytest.CaptureFixture[str]) -> None:
    """I7: without the API and without a client. Only the result is printed; the log level is restored."""
    level = logger.log_level
    event = {"action": "create", "name": "admin", "scopes": ["clients:write"], "actor": "ann", "reason": "new"}
    command.main([json.dumps(event)])
    result = json.loads(capsys.readouterr().out)
    assert is_allowed(runtime, Token.from_header(f"Bearer {result['token']}"))
    capsys.readouterr()
    command.main(['{"action": "list"}'])
    (listed,) = json.loads(capsys.readouterr().out)["clients"]
    assert (listed["client_id"], listed["name"], listed["created_by"]) == (result["client_id"], "admin", None)
    command.main([json.dumps({"action": "revoke", "client_id": listed["client_id"], "actor": "ann", "reason": "x"})])
    actions = rows.execute(
        "SELECT action FROM operator_actions WHERE source LIKE '%, infra.operators.clients' ORDER BY occurred_at"
    ).fetchall()
    assert [row["action"] for row in actions] == ["create", "revoke"]
    assert logger.log_level == level


@pytest.mark.usefixtures("_operator_environment")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "python -m infra.operators.clients"),
        (["{"], "The argument is not JSON"),
        (["[]"], "action must be one of create, list"),
        (['{"action": "rotate", "client_id": "x"}'], "reason is missing: state why|actor is missing"),
    ],
)
def test_program_reports_invalid_commands(arguments: list[str], problem: str) -> None:
    """The error is a message without a traceback."""
    with pytest.raises(SystemExit, match=problem):
        command.main(arguments)


def test_development_client_keeps_its_token_and_its_id(runtime: Runtimes, clients_url: str, tmp_path: Path) -> None:
    """The token stays the same while its file exists. If the file is lost, the same client gets a new token."""
    file = tmp_path / "token"
    first = development_token(clients_url, file)
    assert development_token(clients_url, file) == first == file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.unlink()
    second = development_token(clients_url, file)
    tokens = [Token.from_header(f"Bearer {text}") for text in (first, second)]
    assert tokens[0].client_id == tokens[1].client_id
    assert [is_allowed(runtime, token) for token in tokens] == [True, True]
    (only,) = runtime.clients.list_all()
    assert set(only["scopes"]) == set(Scope)


def damage(kind: str, file: Path, rows: Rows) -> None:
    """Damage the development client or its token file."""
    statement: dict[str, Any] = {
        "revoked": "UPDATE api_clients SET revoked_at = now()",
        "deleted": "DELETE FROM api_clients",
        "fewer scopes": "UPDATE api_clients SET scopes = ARRAY['ops:read']",
    }
    if kind in statement:
        rows.execute(statement[kind])
    else:
        file.write_text({"garbage": "gw_dev", "stale": Token.mint("dev", "0" * 12).text}[kind])


@pytest.mark.parametrize("kind", ["revoked", "deleted", "fewer scopes", "garbage", "stale"])
def test_damaged_development_client_is_repaired(
    runtime: Runtimes, rows: Rows, clients_url: str, tmp_path: Path, kind: str
) -> None:
    """The next start always has a token with all scopes."""
    file = tmp_path / "token"
    first = development_token(clients_url, file)
    damage(kind, file, rows)
    second = development_token(clients_url, file)
    policy = runtime.authorizer.authorize(f"Bearer {second}", ARN)
    assert first != second
    assert policy["context"]["scopes"].split() == sorted(Scope)
