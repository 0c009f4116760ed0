"""Authorization and rate limits: every route of the deployed API, with every kind of token."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.clients.scopes import ROUTES, Scope
from infra.local.deployment.template import load_template
from infra.local.system.processes import wait_for
from tests.e2e.aws import client, wait_for_log
from tests.e2e.callers import MALFORMED, count_rows, create_caller, manage_clients, protected_routes, send_request
from tests.e2e.http import Http
from tests.support.client import ENTITLEMENTS, EXTENSIONS, GRANTS, REVOKES, SUMMARY
from tests.support.contract import assert_matches_contract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.stack.embedded import EmbeddedStack

ROUTES_IN_TEMPLATE = protected_routes()

ME = "/v1/me"
AUDIT_ROWS = "SELECT caller, outcome FROM entitlement_audit WHERE user_id = %s ORDER BY occurred_at"


@pytest.fixture(scope="module")
def api_url(stack: EmbeddedStack) -> str:
    """The API's address, read once."""
    return stack.api_url


@pytest.fixture(scope="module")
def headers_by_scope(stack: EmbeddedStack) -> dict[Scope, str]:
    """For each scope, the Authorization header of a client that has only this scope."""
    return {scope: f"Bearer {create_caller(stack, scope).token}" for scope in Scope}


@pytest.mark.parametrize(("method", "path"), ROUTES_IN_TEMPLATE)
def test_route_refuses_every_invalid_token(
    stack: EmbeddedStack, api_url: str, invalid_headers: dict[str, str | None], method: str, path: str
) -> None:
    """E5: 401 for a missing or malformed token, 403 for an invalid one, as openapi.yaml says; nothing is written."""
    before = count_rows(stack)
    statuses = {kind: send_request(api_url, method, path, header).status for kind, header in invalid_headers.items()}
    assert statuses == {kind: 401 if kind in MALFORMED else 403 for kind in invalid_headers}
    assert count_rows(stack) == before


@pytest.mark.parametrize(("method", "path"), ROUTES_IN_TEMPLATE)
def test_route_accepts_only_its_own_scope(
    stack: EmbeddedStack, api_url: str, headers_by_scope: dict[Scope, str], method: str, path: str
) -> None:
    """E5: every other scope gets 403 and writes nothing; the required scope is accepted with the same request.

    The user is new, so that a grant and every read succeed, and a revoke or an extension is a state conflict.
    """
    of_path = {route: scope for route, scope in ROUTES.items() if route.partition(" ")[2] == path}
    # Another method needs the scope of the first route of its path.
    required = of_path.get(f"{method} {path}", next(iter(of_path.values())))
    before = count_rows(stack)
    statuses = {
        scope: send_request(api_url, method, path, headers_by_scope[scope]).status
        for scope in Scope
        if scope is not required
    }
    assert statuses == dict.fromkeys(statuses, 403)
    assert count_rows(stack) == before
    response = send_request(api_url, method, path, headers_by_scope[required])
    expected = (409, "ENTITLEMENT_STATE_CONFLICT") if path in {REVOKES, EXTENSIONS} else (200, None)
    if path.startswith("/v1/ops/") and method != "ANY":  # accepted, but see send_request
        assert response.status in {200, 400, 404}
        return
    assert (response.status, response.code) == ((405, "METHOD_NOT_ALLOWED") if method == "ANY" else expected)


def test_owner_of_a_token_learns_what_is_wrong_with_it(
    stack: EmbeddedStack, api_url: str, invalid_headers: dict[str, str | None]
) -> None:
    """T10: an expired, a revoked, an under-scoped and a wrong token have different responses, and write nothing."""
    before = count_rows(stack)
    responses = {kind: send_request(api_url, "GET", ME, header) for kind, header in invalid_headers.items()}
    assert count_rows(stack) == before
    states = {kind: response.json["state"] for kind, response in responses.items() if response.status == 200}
    assert states == {"an expired client": "EXPIRED", "a revoked client": "REVOKED"}
    refused = {kind: response.status for kind, response in responses.items() if response.status != 200}
    assert refused == {kind: 401 if kind in MALFORMED else 403 for kind in refused}
    own = send_request(api_url, "GET", ME, f"Bearer {create_caller(stack, Scope.READ_CHANGES).token}").json
    assert (own["state"], own["scopes"]) == ("ACTIVE", ["changes:read"])


def test_cached_policy_allows_all_routes_of_the_client(stack: EmbeddedStack, api_url: str) -> None:
    """The policy that API Gateway caches for a token names all allowed routes, not only the first one."""
    http, user = Http(api_url, create_caller(stack).token), f"u_{uuid.uuid4()}"
    assert http.list_entitlements(user).status == 200
    assert http.grant(f"{user}-1", user_id=user).status == 200
    assert http.revoke(f"{user}-2", user_id=user).status == 200
    assert http.send("GET", SUMMARY.replace("{user_id}", user)).status == 200


def test_retry_with_a_rotated_token_replays_the_stored_response(stack: EmbeddedStack, api_url: str) -> None:
    """I7: a key belongs to the client, not to its token; during the overlap, both tokens are valid."""
    caller, user = create_caller(stack), f"u_{uuid.uuid4()}"
    first = Http(api_url, caller.token).grant(f"{user}-1", user_id=user)
    rotated = manage_clients(stack, action="rotate", client_id=caller.client_id)
    retry = Http(api_url, rotated["token"]).grant(f"{user}-1", user_id=user)
    assert (first.status, retry.status, retry.body, retry.replayed) == (200, 200, first.body, True)
    assert Http(api_url, caller.token).list_entitlements(user).status == 200


def test_caller_never_gets_the_stored_response_of_another_caller(stack: EmbeddedStack, api_url: str) -> None:
    """I7, A1: the same key and body from another caller is another request, and the audit names each caller."""
    first, second = create_caller(stack), create_caller(stack)
    user = f"u_{uuid.uuid4()}"
    granted = Http(api_url, first.token).grant("key", user_id=user)
    refused = Http(api_url, second.token).grant("key", user_id=user)
    assert granted.status == 200
    assert (refused.status, refused.code, refused.replayed) == (409, "ENTITLEMENT_STATE_CONFLICT", False)
    with psycopg.connect(stack.database_url) as connection:
        audited = connection.execute(AUDIT_ROWS, (user,)).fetchall()
    assert audited == [(first.client_id, "APPLIED"), (second.client_id, "ENTITLEMENT_STATE_CONFLICT")]


def test_revoked_token_is_refused_after_the_cache_time(stack: EmbeddedStack, api_url: str) -> None:
    """A token in use is refused as soon as API Gateway calls the authorizer again."""
    with authorizer_cache_time(stack, 1):
        caller = create_caller(stack)
        http = Http(api_url, caller.token)
        assert http.list_entitlements("u").status == 200
        manage_clients(stack, action="revoke", client_id=caller.client_id)
        path = ENTITLEMENTS.replace("{user_id}", "u")
        refused = wait_for(lambda: [status for status in [http.send("GET", path).status] if status != 200], 30)
    assert refused == [403]


def test_authorizer_refuses_valid_tokens_while_the_database_is_down(stack: EmbeddedStack, api_url: str) -> None:
    """E5: a valid token that is not cached gets 503 during the outage, and works when PostgreSQL is back."""
    caller, user = create_caller(stack), f"u_{uuid.uuid4()}"
    http = Http(api_url, caller.token)
    before = count_rows(stack)
    stack.postgres.stop()
    try:
        statuses = [
            send_request(api_url, route[0], route[1], f"Bearer {caller.token}").status
            for route in (("POST", GRANTS), ("GET", ENTITLEMENTS))
        ]
    finally:
        stack.postgres.start()
    assert statuses == [503, 503]
    assert count_rows(stack) == before
    assert http.grant(f"{user}-1", user_id=user).status == 200


def test_requests_above_the_rate_limit_get_429(stack: EmbeddedStack, api_url: str) -> None:
    """E5: the limit of one route does not affect other routes."""
    http, path = Http(api_url, create_caller(stack).token), SUMMARY.replace("{user_id}", "u")
    assert http.send("GET", path).status == 200
    with rate_limit(stack, "~1v1~1users~1{user_id}~1summary/GET"):
        responses = [http.send("GET", path) for _ in range(3)]
        assert [response.status for response in responses] == [200, 429, 429]
        for response in responses:
            assert_matches_contract("GET", SUMMARY, response.status, response.headers, response.body)
        assert http.list_entitlements("u").status == 200
    assert http.send("GET", path).status == 200


def test_every_route_has_its_rate_limit(stack: EmbeddedStack) -> None:
    """The deployed stage has the values of the parameters."""
    outputs = stack.deployment.outputs()
    stage = client(stack, "apigateway").get_stage(restApiId=outputs["ApiId"], stageName=outputs["ApiStage"])
    settings = stage["methodSettings"].items()
    limits = {key.replace("~1", "/"): setting["throttlingRateLimit"] for key, setting in settings}
    parameters = load_template()["Parameters"]
    assert limits[f"/{GRANTS}/POST"] == parameters["WriteRateLimit"]["Default"]
    assert limits["//v1/users/{user_id}/summary/GET"] == parameters["ReadRateLimit"]["Default"]
    assert limits["*/*"] == parameters["OperationsRateLimit"]["Default"]
    paths = {route.partition(" ")[2] for route in ROUTES}
    assert {key for key in limits if key.rpartition("/")[0][1:] not in paths} == {"*/*"}


def test_token_is_not_logged(stack: EmbeddedStack, api_url: str) -> None:
    """Neither the function that creates it nor the authorizer logs a token."""
    caller = create_caller(stack)
    assert Http(api_url, caller.token).list_entitlements("u").status == 200
    for name in ("authorize-caller", "manage-clients"):
        text = wait_for_log(stack, name, lambda text: caller.client_id in text)
        assert caller.token.rpartition("_")[2] not in text, name


@contextlib.contextmanager
def authorizer_cache_time(stack: EmbeddedStack, seconds: int) -> Iterator[None]:
    """Set the time for which API Gateway caches policies inside the block."""
    gateway, api = client(stack, "apigateway"), stack.deployment.outputs()["ApiId"]
    (authorizer,) = gateway.get_authorizers(restApiId=api)["items"]

    def set_cache_time(seconds: int) -> None:
        change = {"op": "replace", "path": "/authorizerResultTtlInSeconds", "value": str(seconds)}
        gateway.update_authorizer(restApiId=api, authorizerId=authorizer["id"], patchOperations=[change])

    assert int(authorizer["authorizerResultTtlInSeconds"]) == 60
    set_cache_time(seconds)
    try:
        yield
    finally:
        set_cache_time(60)


@contextlib.contextmanager
def rate_limit(stack: EmbeddedStack, method: str) -> Iterator[None]:
    """Limit a method to one request, and the next one after a long time, inside the block."""
    gateway, outputs = client(stack, "apigateway"), stack.deployment.outputs()
    stage = {"restApiId": outputs["ApiId"], "stageName": outputs["ApiStage"]}
    limits = {"rateLimit": "0.001", "burstLimit": "1"}
    patches = [
        {"op": "replace", "path": f"/{method}/throttling/{name}", "value": value} for name, value in limits.items()
    ]
    gateway.update_stage(**stage, patchOperations=patches)
    try:
        yield
    finally:
        gateway.update_stage(**stage, patchOperations=[{"op": "remove", "path": f"/{method}"}])
