"""G6: unknown client ids cost at most one look-up a second in each execution environment."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.api.authorizer import AuthorizerHandler
from grantwire.clients.authorizer import Authorizer
from grantwire.clients.lookup import LimitedLookup
from grantwire.clients.store import Client, Clients
from grantwire.clients.tokens import Token, generate_client_id
from grantwire.errors import UnauthenticatedError
from grantwire.wiring.authentication import build_decisions
from grantwire.wiring.routes.authorize_caller import CallerRuntime
from infra.local.deployment.template import load_template
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from grantwire.clients.authorizer import DecisionCache

TEMPLATE = load_template()
ARN = "arn:aws:execute-api:eu-central-1:123456789012:abcdef1234/prod/GET/v1/users/u/entitlements"


class FakeClients:
    """Registered clients, and the ids that were looked up."""

    def __init__(self, *ids: str) -> None:
        self.ids = set(ids)
        self.are_too_many = False
        self.looked_up: list[str] = []

    def find_or_list_ids(self, client_id: str) -> tuple[Client | None, frozenset[str] | None]:
        """Return the client, or all ids, or None if these are too many."""
        self.looked_up.append(client_id)
        if client_id in self.ids:
            return Client(client_id, frozenset(), ("0" * 64,), None, False), frozenset()
        return None, None if self.are_too_many else frozenset(self.ids)


def make_lookup(clients: FakeClients, now: list[float]) -> LimitedLookup:
    """Return the look-up of one execution environment, at the time in `now`."""
    return LimitedLookup(clients, lambda: now[0])  # type: ignore[arg-type]


def test_flood_of_unknown_ids_costs_one_lookup_a_second() -> None:
    """G6: 1,000 different ids in ten seconds are ten look-ups; the others are refused without one."""
    clients, now = FakeClients("known"), [100.0]
    lookup, refused = make_lookup(clients, now), 0
    for number in range(1000):
        try:
            assert lookup.find(f"x{number}") is None
        except UnauthenticatedError:
            refused += 1
        now[0] += 0.01
    assert len(clients.looked_up) in {10, 11}
    assert refused + len(clients.looked_up) == 1000


def test_registered_client_is_found_during_a_flood() -> None:
    """G6: also at its first request in this environment, and at every one, so that a revocation is seen."""
    clients, now = FakeClients("known", "other"), [100.0]
    lookup = make_lookup(clients, now)
    assert lookup.find("x") is None
    for _ in range(3):
        found = lookup.find("known")
        assert found is not None
        with pytest.raises(UnauthenticatedError):
            lookup.find("y")
    assert lookup.find("other") is not None
    assert clients.looked_up == ["x", "known", "known", "known", "other"]


def test_nobody_is_refused_unseen_if_there_are_too_many_clients_to_list() -> None:
    """G11: whoever creates many clients cannot make a stranger's invented tokens refuse the others."""
    clients = FakeClients("known")
    clients.are_too_many = True
    lookup = make_lookup(clients, [100.0])
    assert lookup.find("x") is None
    assert lookup.find("y") is None
    assert lookup.find("known") is not None


def test_new_client_is_found_after_a_second() -> None:
    """G6: one that was created after the last look-up of an unknown id; its refusal is not cached."""
    clients, now = FakeClients(), [100.0]
    lookup = make_lookup(clients, now)
    assert lookup.find("new") is None
    clients.ids.add("new")
    now[0] += 0.99
    with pytest.raises(UnauthenticatedError):
        lookup.find("new")
    now[0] += 0.02
    assert lookup.find("new") is not None


def test_clock_that_was_set_back_does_not_block_lookups() -> None:
    """G6: otherwise clients would be refused until the time is reached again."""
    clients, now = FakeClients(), [100.0]
    lookup = make_lookup(clients, now)
    lookup.find("x")
    now[0] = 50.0
    assert lookup.find("y") is None


def test_refusal_without_lookup_is_401_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """G6: API Gateway responds with 401 to an error with exactly this text; it is not a failure of the authorizer."""
    authorizer = Authorizer(make_lookup(FakeClients(), [100.0]), "live")
    handler = AuthorizerHandler("authorize_caller", lambda _: authorizer, lambda rt, *args: rt.authorize(*args))

    def send() -> Any:
        token = Token.mint("live", "0123456789ab").text
        return handler({"authorizationToken": f"Bearer {token}", "methodArn": ARN}, None)

    assert send()["policyDocument"]["Statement"][0]["Effect"] == "Deny"
    capsys.readouterr()
    with pytest.raises(UnauthenticatedError) as refused:
        send()
    assert str(refused.value) == "Unauthorized"
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (counted,) = [line for line in lines if "RequestsRefused" in line]
    assert (counted["caller"], counted["outcome"], counted["RequestsRefused"]) == (
        "anonymous",
        "UNAUTHENTICATED",
        [1.0],
    )
    assert not any("AuthorizerFailures" in line for line in lines)


def test_invented_tokens_raise_no_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    """G12: not by a metric of the authorizer, and its errors, which Lambda counts, are in no alarm."""
    known_id = generate_client_id()
    authorizer = Authorizer(make_lookup(FakeClients(known_id), [100.0]), "live")
    handler = AuthorizerHandler("authorize_caller", lambda _: authorizer, lambda rt, *args: rt.authorize(*args))
    tokens = [Token.mint("live", generate_client_id()) for _ in range(100)]
    tokens += [Token.mint(environment, known_id) for environment in ("live", "dev") for _ in range(100)]
    errors = 0
    for token in tokens:
        try:
            handler({"authorizationToken": f"Bearer {token.text}", "methodArn": ARN}, None)
        except UnauthenticatedError:
            errors += 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    alarms = [item["Properties"] for item in TEMPLATE["Resources"].values() if item["Type"] == "AWS::CloudWatch::Alarm"]
    watched = {alarm["MetricName"] for alarm in alarms if alarm.get("Namespace") == "Grantwire"}
    assert {(name, sum(line[name])) for line in lines for name in watched & line.keys()} == {("CallersRefused", 0.0)}
    assert errors == 99
    queries = [query for alarm in alarms if "SUM(Errors)" in (query := json.dumps(alarm.get("Metrics")))]
    assert queries
    assert not any("AuthorizeCallerFunction" in query for query in queries)


@pytest.mark.parametrize(
    "build",
    [lambda environ: CallerRuntime.build(environ).authorizer, build_decisions],
    ids=["authorize_caller", "a route that authenticates"],
)
def test_every_function_that_authenticates_limits_lookups(
    build: Callable[[Mapping[str, str]], Authorizer | DecisionCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G6: with the runtime that is built from the environment."""
    clients = FakeClients()
    monkeypatch.setattr(Clients, "find_or_list_ids", lambda _, client_id: clients.find_or_list_ids(client_id))
    callers = build({**PLAINTEXT, "DATABASE_URL": "postgresql://u@h/d", "TOKEN_ENVIRONMENT": "live"})
    refused = 0
    for _ in range(100):
        try:
            callers.decide(f"Bearer {Token.mint('live', generate_client_id()).text}")
        except UnauthenticatedError:
            refused += 1
    assert refused
    assert refused + len(clients.looked_up) == 100
