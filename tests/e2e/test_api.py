"""The deployed API as a caller uses it: built artifacts, over HTTP, through API Gateway."""

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

from grantwire.database.migrations import read_schema
from infra.local.deployment.sam import STACK_NAME
from tests.e2e.aws import client, invoke, wait_for_log
from tests.e2e.callers import create_caller
from tests.e2e.http import Http
from tests.support.checks import CHECK, CHECKS, HISTORY
from tests.support.client import CHANGE, GRANTS, item

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.stack.embedded import EmbeddedStack


# The response to an outage may include the start of an execution environment.
MAX_COLD_START_SECONDS = 25


@pytest.fixture
def user() -> str:
    """A new user."""
    return f"u_{uuid.uuid4()}"


def test_grant_replay_conflict_revoke_and_query(http: Http, user: str) -> None:
    """S3, E2-E4, I1-I3: each request has the response that the API document describes."""
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
    (entitlement,) = http.list_entitlements(user).json["entitlements"]
    assert (entitlement["status"], entitlement["version"]) == ("REVOKED", 2)
    assert entitlement["updated_at"] == revoked.json["updated_at"]


def test_check_is_explained_cached_and_not_sent_again(http: Http, user: str) -> None:
    """K1, K2, K8: check, 304, check of several, history and the past, through API Gateway."""
    path = CHECK.format(user_id=user, stock_keeping_unit="item1")
    assert http.get(CHECK, path).json["reason"]["code"] == "NOT_GRANTED"
    granted = http.grant(f"{user}-1", user_id=user).json
    checked = http.get(CHECK, path)
    assert (checked.json["allowed"], checked.json["version"]) == (True, 1)
    assert checked.headers["Cache-Control"] == "private, max-age=60"
    unchanged = http.get(CHECK, path, ("If-None-Match", checked.headers["Etag"]))
    assert (unchanged.status, unchanged.body) == (304, "")
    assert unchanged.headers["Etag"] == checked.headers["Etag"]
    assert unchanged.headers["Cache-Control"] == "private, max-age=60"
    revoked = http.revoke(f"{user}-2", user_id=user).json
    changed = http.get(CHECK, path, ("If-None-Match", checked.headers["Etag"]))
    assert (changed.status, changed.json["allowed"]) == (200, False)
    past = http.get(CHECK, f"{path}?at={granted['updated_at']}")
    assert (past.json["allowed"], past.headers["Cache-Control"]) == (True, "no-store")
    history = http.get(HISTORY, f"{path}/history?limit=1").json
    assert (history["history"][0]["version"], history["history"][0]["occurred_at"]) == (2, revoked["updated_at"])
    older = http.get(HISTORY, f"{path}/history?before={history['next_before']}").json
    assert [entry["version"] for entry in older["history"]] == [1]
    body = json.dumps({"checks": [{"user_id": user, "stock_keeping_unit": sku} for sku in ("item2", "item1")]})
    many = http.send("POST", CHECKS, [("Content-Type", "application/json")], body)
    assert [result["status"] for result in many.json["results"]] == ["NONE", "REVOKED"]


def test_batch_and_single_requests_replay_each_other(http: Http, user: str) -> None:
    """K6, S3: 100 items in one request, of which one was sent alone before, and one is sent alone afterwards."""
    alone = http.grant(f"{user}-0", user_id=user, stock_keeping_unit="item0")
    items = [item(f"{user}-{n}", user_id=user, stock_keeping_unit=f"item{n}") for n in range(100)]
    response = http.batch(items)
    assert response.status == 200
    first, *others = response.json["results"]
    assert first == {"status_code": 200, "replayed": True, "response": alone.json}
    assert [(each["status_code"], each["replayed"]) for each in others] == [(200, False)] * 99
    replay = http.grant(f"{user}-99", user_id=user, stock_keeping_unit="item99")
    assert (replay.replayed, replay.json) == (True, others[-1]["response"])
    change = {"user_id": user, "stock_keeping_unit": "item0"}
    refused = http.batch([item(f"{user}-a", "revoke", **change), item(f"{user}-b", "revoke", **change)], atomic=True)
    assert (refused.status, refused.code) == (409, "NOT_APPLIED")
    assert {each["status"] for each in http.list_entitlements(user).json["entitlements"]} == {"ACTIVE"}


def test_fifty_requests_with_one_key_change_the_entitlement_once(http: Http, user: str) -> None:
    """I5: also through API Gateway, in several execution environments."""
    with ThreadPoolExecutor(10) as pool:
        responses = list(pool.map(lambda _: http.grant(f"{user}-1", user_id=user), range(50)))
    assert {(response.status, response.body) for response in responses} == {(200, responses[0].body)}
    assert sum(not response.replayed for response in responses) == 1


def test_fifty_keys_for_one_entitlement_grant_it_once(http: Http, user: str) -> None:
    """E7: there are one 200 and 49 state conflicts, and the version increases by one."""
    with ThreadPoolExecutor(10) as pool:
        responses = list(pool.map(lambda number: http.grant(f"{user}-{number}", user_id=user), range(50)))
    assert sorted(response.status for response in responses) == [200] + [409] * 49
    assert {response.code for response in responses if response.status == 409} == {"ENTITLEMENT_STATE_CONFLICT"}
    assert http.list_entitlements(user).json["entitlements"][0]["version"] == 1


def test_non_ascii_names_are_preserved(http: Http) -> None:
    """Names in the body and in the path are UTF-8."""
    user = f"ユーザー 50% é/{uuid.uuid4()}".replace("/", "-")
    granted = http.grant(str(uuid.uuid4()), user_id=user, stock_keeping_unit="商品/1")
    assert granted.json["user_id"] == user
    assert http.list_entitlements(user, "?limit=1").json["entitlements"][0]["stock_keeping_unit"] == "商品/1"


def test_waiting_request_returns_the_next_change(http: Http, user: str) -> None:
    """K9: through API Gateway, which waits for longer; a cursor needs no escape in a URL."""

    def wait_for_change() -> dict[str, Any]:
        after = first["changes_after"]
        for _ in range(20):
            page = http.send("GET", f"/v1/changes?after={after}&wait=20").json
            after = page["next_after"]
            for change in page["changes"]:
                if change["user_id"] == user:
                    return dict(change)
        return {}

    first = http.send("GET", "/v1/snapshot?limit=1").json
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_for_change)
        granted = http.grant(f"{user}-1", user_id=user).json
        change = waiting.result(timeout=60)
    assert (change["event_type"], change["version"]) == ("EntitlementGranted", granted["version"])


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
def test_bad_input_is_refused_with_an_error_code(
    http: Http, headers: list[tuple[str, str]], body: str | bytes, status: int, code: str
) -> None:
    """E5: also through API Gateway."""
    response = http.send("POST", GRANTS, headers, body)
    assert (response.status, response.code) == (status, code)


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=iso-8859-1", None])
def test_latin_1_body_grants_nothing(stack: EmbeddedStack, http: Http, user: str, content_type: str | None) -> None:
    """G8: a gateway that replaces bytes which are not UTF-8 must not turn every such name into one user."""
    body = json.dumps(CHANGE | {"user_id": f"Andr\xe9 {user}"}, ensure_ascii=False).encode("latin-1")
    headers = [("Idempotency-Key", user), *([("Content-Type", content_type)] if content_type else [])]
    response = http.send("POST", GRANTS, headers, body)
    assert (response.status, response.code) == (400, "BAD_REQUEST")
    with psycopg.connect(stack.database_url) as connection:
        granted = connection.execute("SELECT user_id FROM entitlements WHERE user_id LIKE %s", (f"%{user}",))
        assert granted.fetchall() == []


def test_scheme_of_the_token_is_case_insensitive(stack: EmbeddedStack, user: str) -> None:
    """G8: also through API Gateway, which checks the header first."""
    for scheme in ("bearer", "BEARER"):
        headers = [("Authorization", f"{scheme} {stack.token}")]
        assert Http(stack.api_url).send("GET", f"/v1/users/{user}/entitlements", headers).status == 200


def test_database_outage_is_503_until_the_database_is_back(stack: EmbeddedStack, user: str) -> None:
    """Warm functions respond quickly during the outage and recover automatically; nothing is partly written.

    The caller is new, so that its authorization stays in the cache of API Gateway during the test.
    """
    http = Http(stack.api_url, create_caller(stack).token)
    assert http.grant(f"{user}-1", user_id=user).status == 200
    stack.postgres.stop()
    try:
        started = time.monotonic()
        response = http.revoke(f"{user}-2", user_id=user)
        elapsed = time.monotonic() - started
    finally:
        stack.postgres.start()
    assert (response.status, response.code) == (503, "UNAVAILABLE")
    assert int(response.headers["Retry-After"]) >= 1
    assert elapsed < 2 + MAX_COLD_START_SECONDS
    assert http.revoke(f"{user}-2", user_id=user).json["version"] == 2


def test_deployed_migration_function_creates_the_schema_once(stack: EmbeddedStack) -> None:
    """S1: with its built files, it creates the schema in an empty database and changes nothing in a current one."""
    assert invoke(stack, "migrate-database") == {"applied": []}
    with _empty_database(stack) as url, _migrating(stack, url):
        applied = invoke(stack, "migrate-database")["applied"]
        assert applied == [file.name for file in (*read_schema().migrations, *read_schema().definitions)]
        assert invoke(stack, "migrate-database") == {"applied": []}
        assert _schema(url) == _schema(stack.database_url)


@contextmanager
def _empty_database(stack: EmbeddedStack) -> Iterator[str]:
    """Provide an empty database of the same owner on the stack's server."""
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
    """Direct the deployed migration function to another database inside the block."""
    functions, name = client(stack, "lambda"), f"{STACK_NAME}-migrate-database"
    variables = functions.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
    assert variables["DATABASE_URL"] == stack.database_url
    changed = {"Variables": variables | {"DATABASE_URL": url}}
    functions.update_function_configuration(FunctionName=name, Environment=changed)
    try:
        yield
    finally:
        functions.update_function_configuration(FunctionName=name, Environment={"Variables": variables})


def _schema(url: str) -> list[tuple[Any, ...]]:
    """Return tables with columns, and functions; without the audit's monthly partitions, which depend on the date."""
    with psycopg.connect(url) as connection:
        return connection.execute("""
            SELECT table_name, column_name, data_type FROM information_schema.columns
             WHERE table_schema = 'public' AND table_name !~ '_y[0-9]{4}m[0-9]{2}$'
             UNION ALL
            SELECT proname, pg_get_function_identity_arguments(oid), md5(prosrc) FROM pg_proc
             WHERE pronamespace = 'public'::regnamespace
             ORDER BY 1, 2, 3""").fetchall()


def test_logs_contain_neither_idempotency_keys_nor_bodies(stack: EmbeddedStack, http: Http, user: str) -> None:
    """This checks what the deployed functions wrote to CloudWatch."""
    secret = f"secret-{uuid.uuid4()}"
    http.grant(secret, user_id=user, reason="do not log me")
    text = wait_for_log(stack, "grant", lambda text: '"outcome":"APPLIED"' in text)
    assert secret not in text
    assert "do not log me" not in text
