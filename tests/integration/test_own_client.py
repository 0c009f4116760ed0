"""T10: what a client learns about itself and its token."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from functions.operations.handler import handler
from grantwire.clients.authorizer import Authorizer, DecisionCache
from grantwire.clients.lookup import LimitedLookup
from grantwire.clients.scopes import Scope
from grantwire.clients.store import ClientLimits, Clients
from grantwire.operator_actions import Operator
from grantwire.wiring.gateway import Gateway
from grantwire.wiring.routes.operations import OperationsRuntime
from tests.support.client import Response, event
from tests.support.client_administration import Administration
from tests.support.contract import assert_matches_contract
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows

ME = "/v1/me"
PERSON = Operator("ann", "a test", "tests")


class Caller:
    """Caller of a local gateway, which has no authorizer: the function authenticates its callers itself."""

    def __init__(self, database_url: str) -> None:
        self.runtime = OperationsRuntime.build({**PLAINTEXT, "DATABASE_URL": database_url})
        lookup = LimitedLookup(Clients(self.runtime.database, "test"), clock=lambda: 0.0)
        decisions = DecisionCache(Authorizer(lookup, "test"), timedelta(0))
        self.handler = handler.with_runtime(self.runtime, replace(Gateway(), callers=decisions))

    def send(self, token: str, path: str = ME, method: str = "GET") -> Response:
        """Send a request with a token."""
        sent = self.handler(event(method, path, headers={"Authorization": f"Bearer {token}"}), None)
        response = Response(sent["statusCode"], sent["headers"], sent["body"])
        assert_matches_contract(method, path, response.status, response.headers, response.body)
        return response


@pytest.fixture
def caller(database_url: str) -> Iterator[Caller]:
    """A caller of the function, with its own connection."""
    caller = Caller(database_url)
    yield caller
    caller.runtime.database.close()


@pytest.fixture
def clients(clients_url: str) -> Iterator[Clients]:
    """The clients, as an operator with access to the database manages them."""
    with Administration(clients_url) as administration:
        yield administration.database.clients


def days_until(time: Any) -> int:
    """Return how many days are left until a time of a response, rounded."""
    return round((datetime.fromisoformat(time) - datetime.now(UTC)) / timedelta(days=1))


def test_client_sees_its_scopes_limits_and_expiry(caller: Caller, clients: Clients) -> None:
    """Without any scope for it; the limits are those that apply, and the end is that of the clients above it, too."""
    above = clients.create(PERSON, "above", tuple(Scope), timedelta(days=9))
    limits = ClientLimits(rate_limit=5)
    issued = clients.create(
        PERSON, "shop", [Scope.READ_CHANGES], timedelta(days=30), limits, created_by=above.token.client_id
    )
    shown = caller.send(issued.token.text).json
    assert days_until(shown.pop("expires_at")) == days_until(shown.pop("token_expires_at")) == 9
    assert shown == {
        "client_id": issued.token.client_id,
        "name": "shop",
        "state": "ACTIVE",
        "scopes": ["changes:read"],
        "created_by": above.token.client_id,
        "revoked_at": None,
        "rate_limit": 5,
        "burst_limit": 400,
    }
    refused = caller.send(issued.token.text, "/v1/ops/status")
    assert (refused.status, refused.json["message"]) == (403, "missing required scope ops:read")
    assert caller.send(issued.token.text, method="DELETE").code == "METHOD_NOT_ALLOWED"


@pytest.mark.parametrize(
    ("change", "state"),
    [("revoked_at = now()", "REVOKED"), ("created_at = '2001-01-01', expires_at = '2002-01-01'", "EXPIRED")],
)
def test_inactive_client_learns_its_state_and_nothing_else(
    caller: Caller, clients: Clients, rows: Rows, change: str, state: str
) -> None:
    """Every other route refuses it as before, and a wrong secret gets no answer about the client."""
    token = clients.create(PERSON, "shop", tuple(Scope)).token
    rows.execute(f"UPDATE api_clients SET {change} WHERE client_id = '{token.client_id}'".encode())  # noqa: S608
    assert caller.send(token.text).json["state"] == state
    assert caller.send(token.text, "/v1/ops/status").status == 403
    wrong = replace(token, secret="x" * len(token.secret))
    refused = caller.send(wrong.text)
    assert (refused.status, refused.json["message"]) == (403, "invalid token or missing required scope")


def test_replaced_token_ends_before_its_client(caller: Caller, clients: Clients) -> None:
    """During the overlap of a rotation, each token has its own end; the newest one ends with the client."""
    first = clients.create(PERSON, "shop", tuple(Scope), timedelta(days=30)).token
    second = clients.rotate(PERSON, first.client_id, timedelta(days=2)).token
    ends = {text: caller.send(text).json["token_expires_at"] for text in (first.text, second.text)}
    assert [days_until(ends[text]) for text in (first.text, second.text)] == [2, 30]
    assert {days_until(caller.send(text).json["expires_at"]) for text in ends} == {30}
