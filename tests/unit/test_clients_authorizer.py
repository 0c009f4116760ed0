"""Who may call what: the authorizer's policies, without a database."""

from __future__ import annotations

import fnmatch
import hmac
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.clients.authorizer import Authorizer
from grantwire.clients.scopes import ROUTES, Scope
from grantwire.clients.store import Client
from grantwire.clients.tokens import Token
from grantwire.entrypoints.authorizer import AuthorizerHandler
from grantwire.errors import InternalError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Sequence

API = "arn:aws:execute-api:eu-central-1:123456789012:abcdef1234/prod"
ASKED = f"{API}/POST/v1/entitlements/grants"
TOKEN = Token("live", "0123456789ab", "s" * 43)
CLIENT = Client("0123456789ab", frozenset(Scope), (TOKEN.hash,), None, worth_noting=False)


@dataclass
class Known:
    """Clients as the authorizer knows them."""

    client: Client | None = CLIENT
    failing: Exception | None = None
    looked_up: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)

    def find(self, client_id: str) -> Client | None:
        """The one client, whatever its id."""
        self.looked_up.append(client_id)
        if self.failing:
            raise self.failing
        return self.client if self.client and self.client.client_id == client_id else None

    def seen(self, client_id: str) -> None:
        """Note it, or fail."""
        self.noted.append(client_id)
        if self.failing:
            raise self.failing


def judged(known: Known, header: str = f"Bearer {TOKEN.text}") -> dict[str, Any]:
    """The policy for a header."""
    return Authorizer(known, "live").authorize(header, ASKED)  # type: ignore[arg-type]


def effect(policy: dict[str, Any]) -> tuple[str, Sequence[str]]:
    """What the only statement of a policy does, and to which resources."""
    (statement,) = policy["policyDocument"]["Statement"]
    assert statement["Action"] == "execute-api:Invoke"
    return statement["Effect"], statement["Resource"]


def allows(policy: dict[str, Any], method: str, path: str) -> bool:
    """Whether API Gateway would let this request pass; `*` in a resource stands for slashes too."""
    verdict, resources = effect(policy)
    return verdict == "Allow" and any(fnmatch.fnmatchcase(f"{API}/{method}{path}", one) for one in resources)


@pytest.mark.parametrize("scope", Scope)
def test_a_policy_allows_the_routes_of_the_scopes_and_no_others(scope: Scope) -> None:
    """E5: all of them, whichever was asked for; API Gateway keeps the policy and applies it to the next request."""
    policy = judged(Known(replace(CLIENT, scopes=frozenset({scope}))))
    for route, needed in ROUTES.items():
        method, _, path = route.partition(" ")
        assert allows(policy, method, path.replace("{user_id}", "u_1")) == (needed is scope)
    assert policy["principalId"] == CLIENT.client_id
    assert policy["context"] == {"scopes": scope.value}


def test_a_policy_lets_a_wrong_method_of_an_allowed_path_through() -> None:
    """The function tells it so (405); of a path that is not allowed nobody learns anything."""
    policy = judged(Known(replace(CLIENT, scopes=frozenset({Scope.WRITE_ENTITLEMENTS}))))
    assert allows(policy, "DELETE", "/v1/entitlements/grants")
    assert not allows(policy, "DELETE", "/v1/users/u_1/entitlements")


def test_a_path_that_only_ends_as_an_allowed_one_is_not_allowed() -> None:
    """A slash in a user id must not make a write scope read, nor the other way round."""
    policy = judged(Known(replace(CLIENT, scopes=frozenset({Scope.WRITE_ENTITLEMENTS}))))
    assert not allows(policy, "GET", "/debug/notification/inbox/x/v1/entitlements/grants")
    assert not allows(policy, "GET", "/v1/users/v1/entitlements/grants")


def test_the_largest_policy_fits() -> None:
    """API Gateway takes 8 KB; a client with all scopes on a stage with the longest name stays below."""
    arn = ASKED.replace("prod", "s" * 64)
    policy = Authorizer(Known(), "live").authorize(f"Bearer {TOKEN.text}", arn)  # type: ignore[arg-type]
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
        (replace(CLIENT, refusal="revoked"), f"Bearer {TOKEN.text}", "revoked", TOKEN.client_id),
        (replace(CLIENT, refusal="expired"), f"Bearer {TOKEN.text}", "expired", TOKEN.client_id),
    ],
)
def test_whoever_may_not_come_in_is_denied_everything(
    client: Client | None, header: str, reason: str, principal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """E5: by a policy, which is kept, instead of an error; the log has who and why, and nothing of the token."""
    policy = judged(Known(client), header)
    assert effect(policy) == ("Deny", [f"{API}/*"])
    assert (policy["principalId"], policy["context"]) == (principal, {"scopes": ""})
    logged = capsys.readouterr().out
    assert (json.loads(logged)["client_id"], json.loads(logged)["reason"]) == (principal, reason)
    assert TOKEN.secret not in logged


def test_a_client_whose_scopes_open_nothing_is_denied(capsys: pytest.CaptureFixture[str]) -> None:
    """`ops` is for what an operator may do later; today it opens no route, and the log says so."""
    assert effect(judged(Known(replace(CLIENT, scopes=frozenset({Scope.OPERATE})))))[0] == "Deny"
    assert json.loads(capsys.readouterr().out)["reason"] == "no route for its scopes"


def test_both_tokens_of_a_rotation_are_good() -> None:
    """In either place."""
    other = Token.mint("live", TOKEN.client_id)
    for hashes in ((other.hash, TOKEN.hash), (TOKEN.hash, other.hash)):
        assert effect(judged(Known(replace(CLIENT, hashes=hashes))))[0] == "Allow"


def test_hashes_are_compared_in_constant_time_also_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown id takes the same steps as a known one: a look-up and a comparison that does not end early."""
    compared: list[tuple[str, str]] = []

    def compare(left: str, right: str) -> bool:
        compared.append((left, right))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    steps = []
    for client in (CLIENT, None):
        known = Known(client)
        assert effect(judged(known))[0] == "Deny"
        steps.append((len(known.looked_up), [len(right) for _, right in compared]))
        compared.clear()
    assert steps == [(1, [64])] * 2


def test_a_last_use_is_noted_only_where_it_is_worth_it() -> None:
    """And only for whoever is let in."""
    for client, noted in (
        (replace(CLIENT, worth_noting=True), [CLIENT.client_id]),
        (CLIENT, []),
        (replace(CLIENT, worth_noting=True, refusal="revoked"), []),
    ):
        known = Known(client)
        judged(known)
        assert known.noted == noted


@pytest.mark.parametrize("error", [RetryableError("later"), InternalError("refused")])
def test_a_last_use_that_cannot_be_noted_stops_nobody(error: Exception) -> None:
    """It is for people who look for clients that nobody uses."""

    class Forgetful(Known):
        def seen(self, client_id: str) -> None:
            super().seen(client_id)
            raise error

    assert effect(judged(Forgetful(replace(CLIENT, worth_noting=True))))[0] == "Allow"


@pytest.mark.parametrize("error", [RetryableError("later"), InternalError("refused"), ZeroDivisionError("bug")])
def test_whoever_cannot_be_known_is_not_let_in(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is returned that API Gateway could keep or take for an answer; it is counted and logged."""
    known = Known(failing=error)
    handler = AuthorizerHandler("authorize_caller", lambda _: known, lambda rt, header, _: judged(rt, header))
    with pytest.raises(type(error)):
        handler({"type": "TOKEN", "authorizationToken": f"Bearer {TOKEN.text}", "methodArn": ASKED}, None)
    logged = capsys.readouterr().out
    assert TOKEN.secret not in logged
    assert json.loads(logged.splitlines()[-1])["AuthorizerFailures"] == [1.0]


@pytest.mark.parametrize("event", [{}, {"methodArn": "x"}, {"authorizationToken": "Bearer x"}, {"methodArn": None}])
def test_an_event_that_is_none_lets_nobody_in(event: dict[str, Any]) -> None:
    """Somebody invoked the function by hand: an error, never a policy that allows."""
    authorizer = Authorizer(Known(), "live")  # type: ignore[arg-type]
    handler = AuthorizerHandler("authorize_caller", lambda _: authorizer, lambda rt, *asked: rt.authorize(*asked))
    with pytest.raises((KeyError, ValueError)):
        handler(event, None)


def test_refusals_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody who tries tokens shows in a metric."""
    authorizer = Authorizer(Known(), "live")  # type: ignore[arg-type]
    handler = AuthorizerHandler("authorize_caller", lambda _: authorizer, lambda rt, *asked: rt.authorize(*asked))
    for token in (TOKEN.text, Token.mint("live", TOKEN.client_id).text):
        handler({"authorizationToken": f"Bearer {token}", "methodArn": ASKED}, None)
    metrics = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if "CallersRefused" in line]
    assert [(line["CallersRefused"], line["worker"]) for line in metrics] == [
        ([0.0], "authorize_caller"),
        ([1.0], "authorize_caller"),
    ]
