"""The policies that the authorizer returns, tested without a database."""

from __future__ import annotations

import fnmatch
import hmac
import json
import re
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.api.authorizer import AuthorizerHandler
from grantwire.clients.authorizer import Authorizer, DecisionCache
from grantwire.clients.scopes import CLIENT_ROUTES, ROUTES, Scope
from grantwire.clients.store import Client
from grantwire.clients.tokens import Token
from grantwire.errors import InternalError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Sequence

API = "arn:aws:execute-api:eu-central-1:123456789012:abcdef1234/prod"
METHOD_ARN = f"{API}/POST/v1/entitlements/grants"
TOKEN = Token("live", "0123456789ab", "s" * 43)
CLIENT = Client("0123456789ab", frozenset(Scope), (TOKEN.hash,), None, should_record_use=False)


@dataclass
class FakeClients:
    """A store that has one client, or none, and can fail."""

    client: Client | None = CLIENT
    error: Exception | None = None
    found_ids: list[str] = field(default_factory=list)
    recorded_uses: list[str] = field(default_factory=list)

    def find(self, client_id: str) -> Client | None:
        """Return the client if it has this id."""
        self.found_ids.append(client_id)
        if self.error:
            raise self.error
        return self.client if self.client and self.client.client_id == client_id else None

    def record_use(self, client_id: str) -> None:
        """Remember the use, or fail."""
        self.recorded_uses.append(client_id)
        if self.error:
            raise self.error


def authorize(clients: FakeClients, header: str = f"Bearer {TOKEN.text}") -> dict[str, Any]:
    """Return the policy for an Authorization header."""
    return Authorizer(clients, "live").authorize(header, METHOD_ARN)  # type: ignore[arg-type]


def effect(policy: dict[str, Any]) -> tuple[str, Sequence[str]]:
    """Return the effect and the resources of the only statement of a policy."""
    (statement,) = policy["policyDocument"]["Statement"]
    assert statement["Action"] == "execute-api:Invoke"
    return statement["Effect"], statement["Resource"]


def allows(policy: dict[str, Any], method: str, path: str) -> bool:
    """Return whether API Gateway would allow this request; `*` in a resource also matches slashes."""
    decision, resources = effect(policy)
    return decision == "Allow" and any(fnmatch.fnmatchcase(f"{API}/{method}{path}", resource) for resource in resources)


OPERATORS = {Scope.READ_OPERATIONS, Scope.WRITE_OPERATIONS, Scope.READ_CLIENTS, Scope.WRITE_CLIENTS}


@pytest.mark.parametrize("scope", Scope)
def test_policy_allows_exactly_the_routes_of_the_scopes(scope: Scope) -> None:
    """E5: the policy lists all allowed routes, because API Gateway caches it and applies it to later requests.

    The routes of operators are one entry, because a policy is limited to 8 KB; each function checks its own scope.
    """
    policy = authorize(FakeClients(replace(CLIENT, scopes=frozenset({scope}))))
    for route, required in ROUTES.items():
        method, _, path = route.partition(" ")
        expected = scope in OPERATORS if required in OPERATORS else required is scope
        assert allows(policy, method, re.sub(r"\{\w+\}", "u_1", path)) == expected
    assert policy["principalId"] == CLIENT.client_id
    assert policy["context"] == {"scopes": scope.value}


def test_policy_allows_every_method_of_an_allowed_path() -> None:
    """The function responds to a wrong method with 405. A path that is not allowed stays denied for routed methods."""
    policy = authorize(FakeClients(replace(CLIENT, scopes=frozenset({Scope.WRITE_ENTITLEMENTS}))))
    assert allows(policy, "DELETE", "/v1/entitlements/grants")
    assert allows(policy, "GET", "/v1/entitlements/grants")
    assert not allows(policy, "POST", "/v1/users/u_1/entitlements")


def test_policy_denies_paths_that_only_end_like_an_allowed_path() -> None:
    """A slash in a user id must not allow reads with a write scope, or writes with a read scope."""
    policy = authorize(FakeClients(replace(CLIENT, scopes=frozenset({Scope.WRITE_ENTITLEMENTS}))))
    assert not allows(policy, "GET", "/debug/notification/inbox/x/v1/entitlements/grants")
    assert not allows(policy, "GET", "/v1/users/v1/entitlements/grants")


def test_largest_policy_is_below_the_limit_of_api_gateway() -> None:
    """API Gateway accepts 8 KB: enough for a client with all scopes on a stage with the longest name."""
    arn = METHOD_ARN.replace("prod", "s" * 64)
    policy = Authorizer(FakeClients(), "live").authorize(f"Bearer {TOKEN.text}", arn)  # type: ignore[arg-type]
    assert len(json.dumps(policy)) < 8192


@pytest.mark.parametrize(
    ("client", "header", "reason", "principal"),
    [
        (CLIENT, "", "malformed token", "anonymous"),
        (CLIENT, TOKEN.text, "malformed token", "anonymous"),
        (
            CLIENT,
            f"Bearer {Token('dev', TOKEN.client_id, TOKEN.secret).text}",
            "token of another environment",
            "anonymous",
        ),
        (CLIENT, f"Bearer {Token('live', TOKEN.client_id, 'x' * 43).text}", "unknown token", "anonymous"),
        (CLIENT, f"Bearer {Token('live', 'ba9876543210', TOKEN.secret).text}", "unknown token", "anonymous"),
        (None, f"Bearer {TOKEN.text}", "unknown token", "anonymous"),
    ],
)
def test_invalid_token_gets_a_policy_that_denies_everything(
    client: Client | None, header: str, reason: str, principal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """E5: a policy, which API Gateway caches, not an error. The log has client id and reason, but no token."""
    policy = authorize(FakeClients(client), header)
    assert effect(policy) == ("Deny", [f"{API}/*"])
    assert (policy["principalId"], policy["context"]) == (principal, {"scopes": ""})
    logged = capsys.readouterr().out
    assert (json.loads(logged)["client_id"], json.loads(logged)["reason"]) == (principal, reason)
    assert TOKEN.secret not in logged


@pytest.mark.parametrize(
    ("client", "reason", "scopes"),
    [
        (replace(CLIENT, inactive_reason="revoked"), "revoked", ""),
        (replace(CLIENT, inactive_reason="expired"), "expired", ""),
        (replace(CLIENT, scopes=frozenset({"retired:read"})), "no route for its scopes", "retired:read"),
    ],
)
def test_client_without_a_route_may_only_ask_what_is_wrong(
    client: Client, reason: str, scopes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """T10, E5: the secret of its token is right, so it learns its own state, and can do nothing else."""
    policy = authorize(FakeClients(client))
    assert json.loads(capsys.readouterr().out)["reason"] == reason
    assert (policy["principalId"], policy["context"]) == (CLIENT.client_id, {"scopes": scopes})
    allowed = {
        f"{method} {path}"
        for method in ("GET", "POST", "PUT", "DELETE")
        for path in ("/v1/me", "/v1/ops/status", "/v1/entitlements/grants", "/v1/users/u/entitlements", "/other")
        if allows(policy, method, path)
    }
    assert allowed == {"GET /v1/me", "POST /v1/me"}
    assert allowed >= CLIENT_ROUTES


def test_both_tokens_are_valid_during_a_rotation() -> None:
    """The functions learn which of them it is, because the older one ends earlier (T10)."""
    other = Token.mint("live", TOKEN.client_id)
    for hashes, replaced in (((other.hash, TOKEN.hash), {"replaced": "true"}), ((TOKEN.hash, other.hash), {})):
        policy = authorize(FakeClients(replace(CLIENT, token_hashes=hashes)))
        assert effect(policy)[0] == "Allow"
        assert policy["context"] == {"scopes": " ".join(sorted(Scope)), **replaced}


def test_unknown_client_takes_the_same_steps_as_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lookup and one comparison in constant time, whether the client id exists or not."""
    compared: list[tuple[str, str]] = []

    def compare(left: str, right: str) -> bool:
        compared.append((left, right))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    steps = []
    for client in (CLIENT, None):
        clients = FakeClients(client)
        assert effect(authorize(clients))[0] == "Deny"
        steps.append((len(clients.found_ids), [len(right) for _, right in compared]))
        compared.clear()
    assert steps == [(1, [64])] * 2


def test_last_use_is_recorded_only_when_it_is_due() -> None:
    """Only for a client that is allowed, and only if the recorded use is old."""
    for client, recorded in (
        (replace(CLIENT, should_record_use=True), [CLIENT.client_id]),
        (CLIENT, []),
        (replace(CLIENT, should_record_use=True, inactive_reason="revoked"), []),
    ):
        clients = FakeClients(client)
        authorize(clients)
        assert clients.recorded_uses == recorded


@pytest.mark.parametrize("error", [RetryableError("later"), InternalError("refused")])
def test_failure_to_record_last_use_does_not_deny_the_request(error: Exception) -> None:
    """The last use only helps operators to find unused clients."""

    class FailingClients(FakeClients):
        def record_use(self, client_id: str) -> None:
            super().record_use(client_id)
            raise error

    assert effect(authorize(FailingClients(replace(CLIENT, should_record_use=True))))[0] == "Allow"


@pytest.mark.parametrize("error", [RetryableError("later"), InternalError("refused"), ZeroDivisionError("bug")])
def test_store_failure_denies_the_request(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """The handler raises, so API Gateway gets no policy to apply or to cache. The failure is counted and logged."""
    clients = FakeClients(error=error)
    handler = AuthorizerHandler("authorize_caller", lambda _: clients, lambda rt, header, _: authorize(rt, header))
    with pytest.raises(type(error)):
        handler({"type": "TOKEN", "authorizationToken": f"Bearer {TOKEN.text}", "methodArn": METHOD_ARN}, None)
    logged = capsys.readouterr().out
    assert TOKEN.secret not in logged
    assert json.loads(logged.splitlines()[-1])["AuthorizerFailures"] == [1.0]


@pytest.mark.parametrize("event", [{}, {"methodArn": "x"}, {"authorizationToken": "Bearer x"}, {"methodArn": None}])
def test_malformed_event_raises_an_error(event: dict[str, Any]) -> None:
    """An event that API Gateway did not send never gets a policy."""
    authorizer = Authorizer(FakeClients(), "live")  # type: ignore[arg-type]
    handler = AuthorizerHandler("authorize_caller", lambda _: authorizer, lambda rt, *args: rt.authorize(*args))
    with pytest.raises((KeyError, ValueError)):
        handler(event, None)


def test_refused_requests_are_counted_for_known_clients_only(capsys: pytest.CaptureFixture[str]) -> None:
    """A revoked client and a missing scope count for the client; an id in a wrong token is only claimed.

    The alarm CallersRefused watches clients whose token has become invalid; a stranger cannot raise it (G12).
    """
    reader = replace(CLIENT, scopes=frozenset({Scope.READ_ENTITLEMENTS}))
    wrong = Token.mint("live", TOKEN.client_id).text
    for client, token in (
        (CLIENT, TOKEN.text),
        (reader, TOKEN.text),
        (replace(CLIENT, inactive_reason="revoked"), TOKEN.text),
        (CLIENT, wrong),
    ):
        authorizer = Authorizer(FakeClients(client), "live")  # type: ignore[arg-type]
        handler = AuthorizerHandler(
            "authorize_caller", lambda _: None, lambda _, *args, known=authorizer: known.authorize(*args)
        )
        handler({"authorizationToken": f"Bearer {token}", "methodArn": METHOD_ARN}, None)
    lines = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if "CallersRefused" in line]
    assert [line["CallersRefused"] for line in lines] == [[0.0], [0.0], [1.0], [0.0]]
    assert [line.get("caller") for line in lines] == [None, CLIENT.client_id, CLIENT.client_id, "anonymous"]
    assert [len(line["_aws"]["CloudWatchMetrics"]) for line in lines] == [1, 2, 2, 2]
    for line in lines[1:]:
        directive = line["_aws"]["CloudWatchMetrics"][1]
        assert (directive["Dimensions"], line["outcome"]) == ([["caller", "outcome", "service"]], "FORBIDDEN")
        assert line["RequestsRefused"] == [1.0]


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def test_decision_is_kept_for_the_lifetime() -> None:
    """S4: as by API Gateway, a revoked client is refused, and a refusal ends, only after the cache time."""
    clock, clients = Clock(), FakeClients()
    cache = DecisionCache(Authorizer(clients, "live"), timedelta(seconds=60), clock)  # type: ignore[arg-type]
    header = f"Bearer {TOKEN.text}"
    assert cache.decide(header).scopes == CLIENT.scopes
    clients.client = replace(CLIENT, inactive_reason="revoked")
    clock.now += 59.9
    assert cache.decide(header).reason == "allowed"
    clock.now += 0.1
    assert cache.decide(header).reason == "revoked"
    clients.client = CLIENT
    assert cache.decide(header).reason == "revoked"
    assert len(clients.found_ids) == 2
    clock.now += 60
    assert cache.decide(header).reason == "allowed"


def test_failure_is_not_kept() -> None:
    """S4: the next request asks the database again."""
    clients = FakeClients(error=RetryableError("later"))
    cache = DecisionCache(Authorizer(clients, "live"), timedelta(seconds=60))  # type: ignore[arg-type]
    with pytest.raises(RetryableError):
        cache.decide(f"Bearer {TOKEN.text}")
    clients.error = None
    assert cache.decide(f"Bearer {TOKEN.text}").reason == "allowed"


def test_without_a_lifetime_each_decision_is_new() -> None:
    """S4: AuthorizerCacheSeconds 0 disables the cache, as for API Gateway."""
    clients = FakeClients()
    cache = DecisionCache(Authorizer(clients, "live"), timedelta(0))  # type: ignore[arg-type]
    for _ in range(3):
        cache.decide(f"Bearer {TOKEN.text}")
    assert len(clients.found_ids) == 3


def test_callers_cannot_fill_the_memory_with_tokens() -> None:
    """S4: the cache has at most 1,000 decisions and no token; malformed headers are not kept."""
    cache = DecisionCache(Authorizer(FakeClients(), "live"), timedelta(hours=1))  # type: ignore[arg-type]
    for _ in range(1100):
        cache.decide(f"Bearer {Token.mint('live', TOKEN.client_id).text}")
        cache.decide(Token.mint("live", TOKEN.client_id).text)
    kept = cache._decisions  # noqa: SLF001
    assert 0 < len(kept) <= 1000
    assert {len(key) for key in kept} == {32}  # hashes
