"""What a user does with the deployed stack: built artifacts, over HTTP, through API Gateway."""

from __future__ import annotations

import json
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from infra.local.deployment.sam import STACK_NAME
from tests.e2e.aws import client, invoke, logged
from tests.e2e.callers import created
from tests.e2e.http import Http
from tests.support.client import CHANGE, GRANTS
from tests.support.paths import MIGRATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.stack.embedded import EmbeddedStack


# A sandbox that has to be started first is not the database's fault.
COLD_START = 8


@pytest.fixture
def user() -> str:
    """Somebody new."""
    return f"u_{uuid.uuid4()}"


def test_the_life_of_a_right(http: Http, user: str) -> None:
    """S3, E2-E4, I1-I3: grant, replay, conflict, revoke, query."""
    granted = http.grant(f"{user}-1", user_id=user)
    assert (granted.status, granted.json["status"], granted.json["version"]) == (200, "ACTIVE", 1)
    replay = http.grant(f"{user}-1", user_id=user)
    assert (replay.status, replay.body, replay.replayed) == (200, granted.body, True)
    assert http.grant(f"{user}-1", user_id=user, reason="gift").code == "IDEMPOTENCY_KEY_CONFLICT"
    refused = http.grant(f"{user}-2", user_id=user)
    assert refused.json == {"code": "ENTITLEMENT_STATE_CONFLICT", "message": "already ACTIVE"}
    revoked = http.revoke(f"{user}-3", user_id=user)
    assert (revoked.status, revoked.json["status"], revoked.json["version"]) == (200, "REVOKED", 2)
    assert http.grant(f"{user}-2", user_id=user).body == refused.body
    (right,) = http.rights(user).json["entitlements"]
    assert (right["status"], right["version"], right["updated_at"]) == ("REVOKED", 2, revoked.json["updated_at"])


def test_one_key_sent_fifty_times_changes_once(http: Http, user: str) -> None:
    """I5: through the gateway, in as many sandboxes as it takes."""
    with ThreadPoolExecutor(10) as pool:
        replies = list(pool.map(lambda _: http.grant(f"{user}-1", user_id=user), range(50)))
    assert {(reply.status, reply.body) for reply in replies} == {(200, replies[0].body)}
    assert sum(not reply.replayed for reply in replies) == 1


def test_fifty_keys_for_one_right_have_one_winner(http: Http, user: str) -> None:
    """E7: one 200 and 49 state conflicts, and the version grew by one."""
    with ThreadPoolExecutor(10) as pool:
        replies = list(pool.map(lambda number: http.grant(f"{user}-{number}", user_id=user), range(50)))
    assert sorted(reply.status for reply in replies) == [200] + [409] * 49
    assert {reply.code for reply in replies if reply.status == 409} == {"ENTITLEMENT_STATE_CONFLICT"}
    assert http.rights(user).json["entitlements"][0]["version"] == 1


def test_names_from_all_over_the_world_survive_the_way(http: Http) -> None:
    """UTF-8 in body and path."""
    user = f"ユーザー 50% é/{uuid.uuid4()}".replace("/", "-")
    granted = http.grant(str(uuid.uuid4()), user_id=user, stock_keeping_unit="商品/1")
    assert granted.json["user_id"] == user
    assert http.rights(user, "?limit=1").json["entitlements"][0]["stock_keeping_unit"] == "商品/1"


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ([], json.dumps(CHANGE), 400, "BAD_REQUEST"),
        ([("Idempotency-Key", "")], json.dumps(CHANGE), 400, "BAD_REQUEST"),
        ([("Idempotency-Key", "a"), ("Idempotency-Key", "b")], json.dumps(CHANGE), 400, "BAD_REQUEST"),
        ([("Idempotency-Key", "x" * 300)], json.dumps(CHANGE), 400, "BAD_REQUEST"),
        ([("Idempotency-Key", "bad")], "not JSON", 400, "BAD_REQUEST"),
        ([("Idempotency-Key", "bad")], b"\xff\xfe", 400, "BAD_REQUEST"),
        ([("Idempotency-Key", "bad")], "", 400, "BAD_REQUEST"),
        ([("Idempotency-Key", "bad")], " " * 1_000_000, 413, "TOO_LARGE"),
    ],
    ids=["no key", "empty key", "two keys", "long key", "not JSON", "not UTF-8", "no body", "1 MB"],
)
def test_bad_input_gets_a_code(
    http: Http, headers: list[tuple[str, str]], body: str | bytes, status: int, code: str
) -> None:
    """E5: through the gateway as well."""
    reply = http.send("POST", GRANTS, headers, body)
    assert (reply.status, reply.code) == (status, code)


def test_a_database_that_is_down_is_a_503_until_it_is_back(stack: EmbeddedStack, user: str) -> None:
    """Warm sandboxes answer at once and recover by themselves; nothing was half-written.

    The caller is new, so that API Gateway remembers who it is until the end.
    """
    http = Http(stack.api_url, created(stack).token)
    assert http.grant(f"{user}-1", user_id=user).status == 200
    stack.postgres.stop()
    try:
        started = time.monotonic()
        reply = http.revoke(f"{user}-2", user_id=user)
        elapsed = time.monotonic() - started
    finally:
        stack.postgres.start()
    assert (reply.status, reply.code) == (503, "UNAVAILABLE")
    assert int(reply.headers["Retry-After"]) >= 1
    assert elapsed < 2 + COLD_START
    assert http.revoke(f"{user}-2", user_id=user).json["version"] == 2


def test_the_deployed_function_migrates(stack: EmbeddedStack) -> None:
    """S1: with the files of its own build: an empty database gets the whole schema, one that has it is left alone."""
    assert invoke(stack, "migrate-database") == {"applied": []}
    with _empty_database(stack) as url, _migrating(stack, url):
        applied = invoke(stack, "migrate-database")["applied"]
        assert {file.name for file in MIGRATIONS.glob("*.sql")} <= set(applied)
        assert invoke(stack, "migrate-database") == {"applied": []}
        assert _schema(url) == _schema(stack.database_url)


@contextmanager
def _empty_database(stack: EmbeddedStack) -> Iterator[str]:
    """A database beside the stack's, of the same owner."""
    parts = urlsplit(stack.database_url)
    names = {"name": sql.Identifier(f"empty_{uuid.uuid4().hex[:12]}"), "owner": sql.Identifier(str(parts.username))}
    with psycopg.connect(stack.postgres.url(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {name} OWNER {owner}").format(**names))
        try:
            yield urlunsplit(parts._replace(path="/" + names["name"].as_string().strip('"')))
        finally:
            admin.execute(sql.SQL("DROP DATABASE {name} WITH (FORCE)").format(**names))


@contextmanager
def _migrating(stack: EmbeddedStack, url: str) -> Iterator[None]:
    """Let the deployed function migrate another database for a while."""
    functions, name = client(stack, "lambda"), f"{STACK_NAME}-migrate-database"
    variables = functions.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
    assert variables["DATABASE_URL"] == stack.database_url
    elsewhere = {"Variables": variables | {"DATABASE_URL": url}}
    functions.update_function_configuration(FunctionName=name, Environment=elsewhere)
    try:
        yield
    finally:
        functions.update_function_configuration(FunctionName=name, Environment={"Variables": variables})


def _schema(url: str) -> list[tuple[Any, ...]]:
    """Tables with their columns, and functions; without the months of the audit, which depend on the day."""
    with psycopg.connect(url) as connection:
        return connection.execute("""
            SELECT table_name, column_name, data_type FROM information_schema.columns
             WHERE table_schema = 'public' AND table_name !~ '_y[0-9]{4}m[0-9]{2}$'
             UNION ALL
            SELECT proname, pg_get_function_identity_arguments(oid), md5(prosrc) FROM pg_proc
             WHERE pronamespace = 'public'::regnamespace
             ORDER BY 1, 2, 3""").fetchall()


def test_logs_have_neither_keys_nor_bodies(stack: EmbeddedStack, http: Http, user: str) -> None:
    """What the deployed functions really wrote, as CloudWatch has it."""
    secret = f"secret-{uuid.uuid4()}"
    http.grant(secret, user_id=user, reason="do not log me")
    text = logged(stack, "grant", lambda text: '"outcome":"APPLIED"' in text)
    assert secret not in text
    assert "do not log me" not in text
