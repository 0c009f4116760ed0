"""Service clients from their first token to their last, and who is let in meanwhile."""

from __future__ import annotations

import json
import stat
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from functions.authorize_caller.handler import handler as authorize_caller
from functions.manage_clients.handler import handle
from grantwire.clients.commands import ClientCommand
from grantwire.clients.scopes import Scope
from grantwire.clients.tokens import Token
from grantwire.entrypoints.authorizer import AuthorizerHandler
from grantwire.entrypoints.task import TaskHandler
from grantwire.errors import NotFoundError, RejectedError, RetryableError
from grantwire.observability import logger
from grantwire.runtime.clients import CallerRuntime
from infra.cli import clients as command
from infra.local.errors import CommandError
from infra.local.progress import Progress
from infra.local.stack.development_client import development_token
from tests.support.client import CHANGE
from tests.support.concurrency import at_once
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows
    from tests.support.client import Client
    from tests.support.servers import Databases

ARN = "arn:aws:execute-api:eu-central-1:123456789012:abcdef1234/prod/GET/v1/users/u/entitlements"
WRITE, READ = Scope.WRITE_ENTITLEMENTS, Scope.READ_ENTITLEMENTS
STATE = "SELECT * FROM api_clients WHERE client_id = %s"


def built(database_url: str, environment: str = "dev", **environ: str) -> CallerRuntime:
    """What the two functions work with."""
    given = {"DATABASE_URL": database_url, "TOKEN_ENVIRONMENT": environment}
    return CallerRuntime.build({**PLAINTEXT, **given, **environ})


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One database for all; each test begins without clients."""
    url = databases.migrated()
    yield url
    databases.drop(url)


@pytest.fixture
def runtime(database_url: str, rows: Rows) -> Iterator[CallerRuntime]:
    """The functions' runtime, in a world without clients."""
    rows.execute("DELETE FROM api_clients")
    runtime = built(database_url)
    yield runtime
    runtime.close()


def created(runtime: CallerRuntime, name: str = "shop", *scopes: Scope, lifetime: timedelta | None = None) -> Token:
    """A new client's token."""
    return runtime.clients.create(name, scopes or (WRITE,), lifetime).token


def let_in(runtime: CallerRuntime, token: Token) -> bool:
    """Whether the authorizer's policy allows anything."""
    policy = runtime.authorizer.authorize(f"Bearer {token.text}", ARN)
    return bool(policy["policyDocument"]["Statement"][0]["Effect"] == "Allow")


def test_a_new_client_is_let_in_with_its_scopes(runtime: CallerRuntime, rows: Rows) -> None:
    """Its token is in the answer and nowhere else: the database has a hash of it."""
    token = created(runtime, "shop", WRITE, READ)
    policy = runtime.authorizer.authorize(f"Bearer {token.text}", ARN)
    assert (policy["principalId"], policy["context"]["scopes"]) == (
        token.client_id,
        "entitlements:read entitlements:write",
    )
    row = rows.execute(STATE, (token.client_id,)).fetchone()
    assert token.secret not in json.dumps(row, default=str)
    assert row is not None
    assert (row["token_hash"], row["previous_hash"], row["expires_at"]) == (token.hash, None, None)


def test_whoever_is_not_known_is_not_let_in(runtime: CallerRuntime) -> None:
    """A wrong secret, an unknown id, the right token elsewhere, somebody else's id with one's own secret."""
    token, other = created(runtime), created(runtime, "other")
    assert not let_in(runtime, Token.mint("dev", token.client_id))
    assert not let_in(runtime, Token("dev", "0" * 12, token.secret))
    assert not let_in(runtime, Token("live", token.client_id, token.secret))
    assert not let_in(runtime, Token("dev", other.client_id, token.secret))
    assert let_in(runtime, token)


def test_a_rotation_leaves_two_tokens_and_one_client(runtime: CallerRuntime, rows: Rows) -> None:
    """I7: the caller's id stays; the token before the last ends at once, the last one when its time is over."""
    first = created(runtime)
    second = runtime.clients.rotate(first.client_id, timedelta(hours=1)).token
    assert (let_in(runtime, first), let_in(runtime, second)) == (True, True)
    third = runtime.clients.rotate(first.client_id, timedelta(hours=1)).token
    assert [let_in(runtime, one) for one in (first, second, third)] == [False, True, True]
    rows.execute("UPDATE api_clients SET previous_until = now() - interval '1 second'")
    assert [let_in(runtime, one) for one in (second, third)] == [False, True]
    assert len({one.client_id for one in (first, second, third)}) == 1


def test_a_rotation_without_overlap_ends_the_leaked_token_at_once(runtime: CallerRuntime) -> None:
    """As soon as API Gateway asks again."""
    leaked = created(runtime)
    fresh = runtime.clients.rotate(leaked.client_id, timedelta(0)).token
    assert (let_in(runtime, leaked), let_in(runtime, fresh)) == (False, True)


def test_rotations_at_once_leave_the_last_two_tokens(runtime: CallerRuntime, database_url: str) -> None:
    """Each sees what the one before it wrote: two of all the tokens are good, and no others."""
    token = created(runtime)

    def rotate(_number: int) -> Token:
        mine = built(database_url)
        try:
            return mine.clients.rotate(token.client_id, timedelta(hours=1)).token
        finally:
            mine.close()

    tokens = [token, *at_once(6, rotate)]
    assert sum(let_in(runtime, one) for one in tokens) == 2
    assert not let_in(runtime, token)


def test_a_revoked_client_is_out_for_good(runtime: CallerRuntime, rows: Rows) -> None:
    """Both of its tokens, also after a rotation, which is refused; its row stays for the audit, its name is free."""
    first = created(runtime)
    second = runtime.clients.rotate(first.client_id, timedelta(hours=1)).token
    runtime.clients.revoke(first.client_id)
    revoked = rows.execute(STATE, (first.client_id,)).fetchone()
    runtime.clients.revoke(first.client_id)
    assert rows.execute(STATE, (first.client_id,)).fetchone() == revoked
    assert (let_in(runtime, first), let_in(runtime, second)) == (False, False)
    with pytest.raises(NotFoundError, match="revoked"):
        runtime.clients.rotate(first.client_id, timedelta(0))
    successor = created(runtime, "shop")
    assert let_in(runtime, successor)
    assert successor.client_id != first.client_id


def test_a_client_ends_when_it_was_said_to(runtime: CallerRuntime, rows: Rows) -> None:
    """By the database's clock; only a rotation with a new end brings it back."""
    token = created(runtime, lifetime=timedelta(days=90))
    assert let_in(runtime, token)
    rows.execute("UPDATE api_clients SET created_at = now() - interval '2 days', expires_at = now()")
    assert not let_in(runtime, token)
    with pytest.raises(NotFoundError, match="needs expires_in"):
        runtime.clients.rotate(token.client_id, timedelta(0))
    issued = runtime.clients.rotate(token.client_id, timedelta(0), timedelta(days=1))
    assert issued.expires_at is not None
    assert let_in(runtime, issued.token)


@pytest.mark.usefixtures("runtime")
def test_nobody_is_made_twice_under_one_name(rows: Rows, database_url: str) -> None:
    """Of several who try at once, one succeeds; the others are told why, in words."""

    def create(_number: int) -> str:
        mine = built(database_url)
        try:
            return created(mine, "shop").client_id
        except RejectedError as error:
            return str(error)
        finally:
            mine.close()

    answers = at_once(6, create)
    assert answers.count("there is a client named shop already") == 5
    assert rows.execute("SELECT FROM api_clients").rowcount == 1


@pytest.mark.parametrize("action", ["rotate", "revoke"])
def test_a_client_that_does_not_exist_is_said_not_to(runtime: CallerRuntime, action: str) -> None:
    """Whatever was typed."""
    for client_id in ("0" * 12, "'; DROP--", "%s"):
        with pytest.raises(NotFoundError):
            ClientCommand.parse({"action": action, "client_id": client_id}).execute(runtime.clients)


def test_a_last_use_is_noted_once_a_minute(runtime: CallerRuntime, rows: Rows) -> None:
    """Not with every request: it would be a write for each."""
    token = created(runtime)
    select = "SELECT last_used_at FROM api_clients"
    assert let_in(runtime, token)
    (first,) = rows.execute(select).fetchall()
    assert let_in(runtime, token)
    assert rows.execute(select).fetchall() == [first]
    rows.execute("UPDATE api_clients SET last_used_at = now() - interval '61 seconds'")
    assert let_in(runtime, token)
    (later,) = rows.execute(select).fetchall()
    assert later["last_used_at"] > first["last_used_at"]


def test_nobody_waits_for_a_client_that_is_being_changed(
    runtime: CallerRuntime, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last use is left out if the row is locked; waiting would end in the statement's timeout and a warning."""
    token = created(runtime)
    with rows.transaction():
        rows.execute("SELECT FROM api_clients FOR UPDATE")
        assert let_in(runtime, token)
    assert "WARNING" not in capsys.readouterr().out
    assert rows.execute("SELECT FROM api_clients WHERE last_used_at IS NULL").rowcount == 1


def test_without_postgresql_nobody_is_let_in_and_it_goes_on_by_itself(server: PostgresServer) -> None:
    """A warm function: the server stops under it, and comes back."""
    runtime = built(server.url(), DATABASE_STATEMENT_TIMEOUT="1s")
    token = created(runtime, "outage")
    handler = AuthorizerHandler(
        "authorize_caller", lambda _: runtime, lambda rt, *asked: rt.authorizer.authorize(*asked)
    )
    asked = {"type": "TOKEN", "authorizationToken": f"Bearer {token.text}", "methodArn": ARN}
    try:
        assert handler(asked, None)["principalId"] == token.client_id
        server.stop()
        try:
            for _ in range(2):
                with pytest.raises(RetryableError):
                    handler(asked, None)
        finally:
            server.start()
        assert handler(asked, None)["policyDocument"]["Statement"][0]["Effect"] == "Allow"
    finally:
        runtime.close()
    assert isinstance(authorize_caller, AuthorizerHandler)


def test_the_function_shows_a_token_to_its_operator_alone(
    runtime: CallerRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer has it, the log has not; who was made or ended is in the log."""
    handler = TaskHandler("manage_clients", lambda _: runtime, handle, secret_result=True)
    made = handler({"action": "create", "name": "shop", "scopes": ["ops"], "expires_in": "90d"}, None)
    rotated = handler({"action": "rotate", "client_id": made["client_id"]}, None)
    (listed,) = handler({"action": "list"}, None)["clients"]
    handler({"action": "revoke", "client_id": made["client_id"]}, None)
    assert (listed["client_id"], listed["name"], listed["scopes"]) == (made["client_id"], "shop", ["ops"])
    assert listed["expires_at"] == made["expires_at"] == rotated["expires_at"]
    assert not {"token_hash", "previous_hash", "token"} & listed.keys()
    logged = capsys.readouterr().out
    for token in (made["token"], rotated["token"]):
        assert token.rpartition("_")[2] not in logged
    lines = [line for line in map(json.loads, logged.splitlines()) if line["message"] == "client command executed"]
    assert [(line["action"], line["client_id"]) for line in lines] == [
        (action, made["client_id"]) for action in ("create", "rotate", "revoke")
    ]


def test_another_caller_with_the_same_key_gets_its_own_answer(client: Client, rows: Rows) -> None:
    """I7, A1: never the first one's response, and the audit has both."""
    rows.execute("TRUNCATE entitlements, idempotency_keys, entitlement_audit, outbox_events")
    ours = client.grant("key", caller="aaaaaaaaaaaa")
    theirs = client.grant("key", caller="bbbbbbbbbbbb")
    assert (ours.status, theirs.status, theirs.replayed) == (200, 409, False)
    assert (theirs.code, theirs.body) != (ours.code, ours.body)
    assert client.grant("key", caller="aaaaaaaaaaaa").body == ours.body
    audit = rows.execute("SELECT caller, outcome FROM entitlement_audit WHERE user_id = %s", (CHANGE["user_id"],))
    assert {tuple(row.values()) for row in audit} == {
        ("aaaaaaaaaaaa", "APPLIED"),
        ("bbbbbbbbbbbb", "ENTITLEMENT_STATE_CONFLICT"),
    }


@pytest.fixture
def _elsewhere(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    """The environment of an operator, which leads to the test's database."""
    for name, value in {**PLAINTEXT, "DATABASE_URL": database_url, "TOKEN_ENVIRONMENT": "dev"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("_elsewhere")
def test_the_command_does_what_the_function_does(runtime: CallerRuntime, capsys: pytest.CaptureFixture[str]) -> None:
    """The token is printed once; the log's lines stay out of the way, and its level is what it was."""
    level = logger.log_level
    words = ["create", "--name", "shop", "--scope", "entitlements:write", "--scope", "ops", "--expires-in", "90d"]
    assert command.clients(words, Progress()) == 0
    said = capsys.readouterr().out
    token = Token.of_header(f"Bearer {said.splitlines()[-1]}")
    assert said.count(token.secret) == 1
    assert let_in(runtime, token)
    capsys.readouterr()
    command.clients(["rotate", token.client_id, "--overlap", "0s"], Progress())
    command.clients(["list"], Progress())
    command.clients(["revoke", token.client_id], Progress())
    said = capsys.readouterr().out
    assert f"{token.client_id}  shop: entitlements:write ops; until " in said
    assert f"{token.client_id} is revoked" in said
    assert '"message"' not in said
    assert logger.log_level == level


@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["create", "--name", "x", "--scope", "root"], "scopes must be a list"),
        (["rotate", "000000000000"], "no such client"),
        (["revoke", "x" * 13], "client_id must have at most 12"),
    ],
)
def test_the_command_explains_what_is_wrong(runtime: CallerRuntime, words: list[str], problem: str) -> None:
    """Without a traceback."""
    assert runtime.clients.all() == []
    with pytest.raises(CommandError, match=problem):
        command.clients(words, Progress())


def test_the_development_client_keeps_its_token_and_its_id(
    runtime: CallerRuntime, database_url: str, tmp_path: Path
) -> None:
    """As long as the file is there the token is the same; if it is lost, the same client gets another one."""
    file = tmp_path / "token"
    first = development_token(database_url, file)
    assert development_token(database_url, file) == first == file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.unlink()
    second = development_token(database_url, file)
    tokens = [Token.of_header(f"Bearer {text}") for text in (first, second)]
    assert tokens[0].client_id == tokens[1].client_id
    assert [let_in(runtime, token) for token in tokens] == [True, True]
    (only,) = runtime.clients.all()
    assert set(only["scopes"]) == set(Scope)


def damaged(kind: str, file: Path, rows: Rows) -> None:
    """Something happens to the development client or its file."""
    statement: dict[str, Any] = {
        "revoked": "UPDATE api_clients SET revoked_at = now()",
        "gone": "DELETE FROM api_clients",
        "too little": "UPDATE api_clients SET scopes = ARRAY['ops']",
    }
    if kind in statement:
        rows.execute(statement[kind])
    else:
        file.write_text({"garbage": "gw_dev", "stale": Token.mint("dev", "0" * 12).text}[kind])


@pytest.mark.parametrize("kind", ["revoked", "gone", "too little", "garbage", "stale"])
def test_the_development_client_is_mended(
    runtime: CallerRuntime, rows: Rows, database_url: str, tmp_path: Path, kind: str
) -> None:
    """Whatever was done to it, the next start has a token that may do everything."""
    file = tmp_path / "token"
    first = development_token(database_url, file)
    damaged(kind, file, rows)
    second = development_token(database_url, file)
    policy = runtime.authorizer.authorize(f"Bearer {second}", ARN)
    assert first != second
    assert policy["context"]["scopes"].split() == sorted(Scope)
