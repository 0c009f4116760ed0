"""Nobody gets in where they do not belong: every route of the deployed API, with every kind of token."""

from __future__ import annotations

import contextlib
import json
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.clients.scopes import ROUTES, Scope
from grantwire.clients.tokens import Token
from infra.local.deployment.template import load_template
from infra.local.stack.development_client import TOKEN_ENVIRONMENT
from infra.local.system.processes import wait_for
from tests.e2e.aws import client, logged
from tests.e2e.callers import created, manage
from tests.e2e.http import Http
from tests.support.client import CHANGE, GRANTS, REVOKES, RIGHTS, SUMMARY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.stack.embedded import EmbeddedStack
    from tests.support.client import Reply

# Taken from the template, so that a new route cannot be forgotten here.
SERVED = [
    (event["Properties"]["Method"].upper(), event["Properties"]["Path"])
    for resource in load_template()["Resources"].values()
    for event in resource.get("Properties", {}).get("Events", {}).values()
    if event["Type"] == "Api"
]

WRITTEN = """
SELECT (SELECT count(*) FROM entitlements), (SELECT count(*) FROM idempotency_keys),
       (SELECT count(*) FROM outbox_events), (SELECT count(*) FROM entitlement_audit),
       (SELECT count(*) FROM api_clients)
"""
EXPIRE = """
UPDATE api_clients SET created_at = now() - interval '2 days', expires_at = now() - interval '1 day'
 WHERE client_id = %s
"""
AUDITED = "SELECT caller, outcome FROM entitlement_audit WHERE user_id = %s ORDER BY occurred_at"


def written(stack: EmbeddedStack) -> Any:
    """How many rows there are in every table that a request may write to."""
    with psycopg.connect(stack.database_url) as connection:
        return connection.execute(WRITTEN).fetchone()


def ask(api_url: str, method: str, path: str, authorization: str | None) -> Reply:
    """A request to a route that would succeed, or be refused by state, if the caller were let in."""
    user = f"u_{uuid.uuid4()}"
    headers = [("Content-Type", "application/json"), ("Idempotency-Key", user)]
    if authorization is not None:
        headers.append(("Authorization", authorization))
    body = json.dumps(CHANGE | {"user_id": user}) if method == "POST" else ""
    asked = "PUT" if method == "ANY" else method
    return Http(api_url).send(asked, path.replace("{user_id}", user), headers, body)


@pytest.fixture(scope="module")
def api_url(stack: EmbeddedStack) -> str:
    """The API's address, asked for once."""
    return stack.api_url


@pytest.fixture(scope="module")
def refused(stack: EmbeddedStack) -> dict[str, str | None]:
    """Authorization headers that let nobody in anywhere, by what is wrong with them."""
    known, expired, revoked = (created(stack) for _ in range(3))
    with psycopg.connect(stack.database_url) as connection:
        connection.execute(EXPIRE, (expired.client_id,))
    manage(stack, action="revoke", client_id=revoked.client_id)
    secret = known.token.rpartition("_")[2]
    return {
        "no token": None,
        "an empty token": "Bearer ",
        "another scheme": "Basic Z3c6Z3c=",
        "a malformed token": "Bearer gw_dev_short",
        "a token without its scheme": known.token,
        "two tokens": f"Bearer {known.token} {known.token}",
        "a wrong secret": f"Bearer {Token.mint(TOKEN_ENVIRONMENT, known.client_id).text}",
        "an unknown client": f"Bearer gw_dev_{'0' * 12}_{secret}",
        "another environment": f"Bearer gw_live_{known.client_id}_{secret}",
        "an expired client": f"Bearer {expired.token}",
        "a revoked client": f"Bearer {revoked.token}",
    }


@pytest.fixture(scope="module")
def scoped(stack: EmbeddedStack) -> dict[Scope, str]:
    """The Authorization header of a client for each scope, who has no other."""
    return {scope: f"Bearer {created(stack, scope).token}" for scope in Scope}


@pytest.mark.parametrize(("method", "path"), SERVED)
def test_a_route_is_closed_to_everybody_without_a_valid_token(
    stack: EmbeddedStack, api_url: str, refused: dict[str, str | None], method: str, path: str
) -> None:
    """E5: 401 for what is no token, 403 for one that is not valid; nothing is written."""
    before = written(stack)
    answers = {kind: ask(api_url, method, path, header).status for kind, header in refused.items()}
    assert {kind for kind, status in answers.items() if status not in {401, 403}} == set()
    assert method == "ANY" or answers["no token"] == answers["a malformed token"] == 401
    assert written(stack) == before


@pytest.mark.parametrize(("method", "path"), SERVED)
def test_a_route_is_open_to_its_own_scope_alone(
    stack: EmbeddedStack, api_url: str, scoped: dict[Scope, str], method: str, path: str
) -> None:
    """E5: each wrong scope is a 403 and writes nothing; the right one is let in, with the same request.

    The user is a new one, so that a grant and every read succeed, and a revoke is refused by state.
    """
    own = {scope for route, scope in ROUTES.items() if route.partition(" ")[2] == path}
    before = written(stack)
    answers = {scope: ask(api_url, method, path, scoped[scope]).status for scope in Scope if scope not in own}
    assert answers == dict.fromkeys(answers, 403)
    assert written(stack) == before
    if method != "ANY":  # which the emulator does not serve
        (right,) = own
        let_in = ask(api_url, method, path, scoped[right])
        assert (let_in.status, let_in.code) == ((409, "ENTITLEMENT_STATE_CONFLICT") if path == REVOKES else (200, None))


def test_one_token_opens_several_routes_within_the_cache_time(stack: EmbeddedStack, api_url: str) -> None:
    """The policy that API Gateway keeps for a token names all that its client may do, not only the first route."""
    http, user = Http(api_url, created(stack).token), f"u_{uuid.uuid4()}"
    assert http.rights(user).status == 200
    assert http.grant(f"{user}-1", user_id=user).status == 200
    assert http.revoke(f"{user}-2", user_id=user).status == 200
    assert http.send("GET", SUMMARY.replace("{user_id}", user)).status == 200


def test_a_retry_with_the_rotated_token_replays(stack: EmbeddedStack, api_url: str) -> None:
    """I7: a key belongs to the client, not to its token; both tokens are good for a while."""
    caller, user = created(stack), f"u_{uuid.uuid4()}"
    first = Http(api_url, caller.token).grant(f"{user}-1", user_id=user)
    rotated = manage(stack, action="rotate", client_id=caller.client_id)
    again = Http(api_url, rotated["token"]).grant(f"{user}-1", user_id=user)
    assert (first.status, again.status, again.body, again.replayed) == (200, 200, first.body, True)
    assert Http(api_url, caller.token).rights(user).status == 200


def test_a_caller_never_gets_another_s_answer(stack: EmbeddedStack, api_url: str) -> None:
    """I7, A1: the same key and body by somebody else is another request, and the audit names who asked."""
    ours, theirs = created(stack), created(stack)
    user = f"u_{uuid.uuid4()}"
    granted = Http(api_url, ours.token).grant("key", user_id=user)
    refused = Http(api_url, theirs.token).grant("key", user_id=user)
    assert granted.status == 200
    assert (refused.status, refused.code, refused.replayed) == (409, "ENTITLEMENT_STATE_CONFLICT", False)
    with psycopg.connect(stack.database_url) as connection:
        audited = connection.execute(AUDITED, (user,)).fetchall()
    assert audited == [(ours.client_id, "APPLIED"), (theirs.client_id, "ENTITLEMENT_STATE_CONFLICT")]


def test_a_revoked_token_ends_with_the_cache_time(stack: EmbeddedStack, api_url: str) -> None:
    """A token that is in use is refused as soon as API Gateway asks again."""
    with cached_for(stack, 1):
        caller = created(stack)
        http = Http(api_url, caller.token)
        assert http.rights("u").status == 200
        manage(stack, action="revoke", client_id=caller.client_id)
        path = RIGHTS.replace("{user_id}", "u")
        refused = wait_for(lambda: [status for status in [http.send("GET", path).status] if status != 200], 30)
    assert refused == [403]


def test_nobody_is_let_in_while_it_cannot_be_known_who_calls(stack: EmbeddedStack, api_url: str) -> None:
    """PostgreSQL is down and nothing is cached: a valid token is turned away, and works when it is back."""
    caller, user = created(stack), f"u_{uuid.uuid4()}"
    http = Http(api_url, caller.token)
    before = written(stack)
    stack.postgres.stop()
    try:
        statuses = [
            ask(api_url, *route, f"Bearer {caller.token}").status for route in (("POST", GRANTS), ("GET", RIGHTS))
        ]
    finally:
        stack.postgres.start()
    assert statuses == [500, 500]  # 503 on AWS, by the template's GatewayResponses
    assert written(stack) == before
    assert http.grant(f"{user}-1", user_id=user).status == 200


def test_too_many_requests_are_told_so(stack: EmbeddedStack, api_url: str) -> None:
    """E5: the limit of one route, which stops nobody at another one."""
    http, path = Http(api_url, created(stack).token), SUMMARY.replace("{user_id}", "u")
    assert http.send("GET", path).status == 200
    with limited(stack, "~1v1~1users~1{user_id}~1summary/GET"):
        assert [http.send("GET", path).status for _ in range(3)] == [200, 429, 429]
        assert http.rights("u").status == 200
    assert http.send("GET", path).status == 200


def test_every_route_has_its_limit(stack: EmbeddedStack) -> None:
    """The parameters' values reach the deployed stage."""
    outputs = stack.deployment.outputs()
    stage = client(stack, "apigateway").get_stage(restApiId=outputs["ApiId"], stageName=outputs["ApiStage"])
    limits = {key.replace("~1", "/"): one["throttlingRateLimit"] for key, one in stage["methodSettings"].items()}
    expected = {f"/{path}/{method}" for method, _, path in (route.partition(" ") for route in ROUTES)}
    assert limits.keys() == expected | {"*/*"}
    assert limits[f"/{GRANTS}/POST"] == load_template()["Parameters"]["GrantRateLimit"]["Default"]


def test_a_token_is_not_logged(stack: EmbeddedStack, api_url: str) -> None:
    """Neither where it is made nor where it is judged."""
    caller = created(stack)
    assert Http(api_url, caller.token).rights("u").status == 200
    for name in ("authorize-caller", "manage-clients"):
        text = logged(stack, name, lambda text: caller.client_id in text)
        assert caller.token.rpartition("_")[2] not in text, name


@contextlib.contextmanager
def cached_for(stack: EmbeddedStack, seconds: int) -> Iterator[None]:
    """Let API Gateway remember what a token may do for so long."""
    gateway, api = client(stack, "apigateway"), stack.deployment.outputs()["ApiId"]
    (found,) = gateway.get_authorizers(restApiId=api)["items"]

    def remember(seconds: int) -> None:
        change = {"op": "replace", "path": "/authorizerResultTtlInSeconds", "value": str(seconds)}
        gateway.update_authorizer(restApiId=api, authorizerId=found["id"], patchOperations=[change])

    assert int(found["authorizerResultTtlInSeconds"]) == 60
    remember(seconds)
    try:
        yield
    finally:
        remember(60)


@contextlib.contextmanager
def limited(stack: EmbeddedStack, method: str) -> Iterator[None]:
    """Let one method take one request, and the next one after a long time."""
    gateway, outputs = client(stack, "apigateway"), stack.deployment.outputs()
    where = {"restApiId": outputs["ApiId"], "stageName": outputs["ApiStage"]}
    limits = {"rateLimit": "0.001", "burstLimit": "1"}
    patches = [{"op": "replace", "path": f"/{method}/throttling/{name}", "value": one} for name, one in limits.items()]
    gateway.update_stage(**where, patchOperations=patches)
    try:
        yield
    finally:
        gateway.update_stage(**where, patchOperations=[{"op": "remove", "path": f"/{method}"}])
