"""G11: what a client with the scope clients:write can do with other clients, and with itself."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.clients.authority import authorize
from grantwire.clients.commands import ClientCommand
from grantwire.clients.limits import LimitSettings
from grantwire.clients.scopes import Scope
from grantwire.clients.store import ClientLimits
from grantwire.clients.tokens import Token
from grantwire.errors import ForbiddenError, NotFoundError
from grantwire.operator_actions import Operator
from tests.support.client_administration import CLIENTS, LIMITS, REVOKE, ROTATE, Administration
from tests.support.concurrency import meet, run_concurrently

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows

PERSON = Operator("ann", "a test", "tests")
WRITE, READ, MANAGE = Scope.WRITE_ENTITLEMENTS, Scope.READ_ENTITLEMENTS, Scope.WRITE_CLIENTS


@pytest.fixture
def administration(clients_url: str) -> Iterator[Administration]:
    """Caller of the function, with a client that has all scopes."""
    with Administration(clients_url) as administration:
        yield administration


def state(rows: Rows) -> list[dict[str, Any]]:
    """Return what actions change in clients."""
    statement = (
        "SELECT client_id, token_hash, expires_at, revoked_at, rate_limit, burst_limit FROM api_clients ORDER BY 1"
    )
    return list(rows.execute(statement).fetchall())


def is_revoked(rows: Rows, client_id: str) -> bool:
    """Return whether a client is revoked."""
    statement = "SELECT FROM api_clients WHERE client_id = %s AND revoked_at IS NOT NULL"
    return rows.execute(statement, (client_id,)).rowcount == 1


def not_revoked(rows: Rows) -> list[str]:
    """Return the names of the clients that are not revoked."""
    found = rows.execute("SELECT name FROM api_clients WHERE revoked_at IS NULL ORDER BY name").fetchall()
    return [row["name"] for row in found]


@pytest.mark.parametrize("path", [ROTATE, LIMITS, REVOKE])
@pytest.mark.parametrize("whose", ["more", "other", "equal", "itself", "above"])
def test_client_cannot_change_one_that_is_not_its_own(
    administration: Administration, rows: Rows, path: str, whose: str
) -> None:
    """Neither with more or other scopes, nor an equal, nor itself, nor the one that created it. Nothing changes."""
    manager = administration.create_below(administration.admin, "manager", MANAGE, WRITE)
    clients = {
        "more": administration.create_root("more", MANAGE, WRITE, READ),
        "other": administration.create_root("other", READ),
        "equal": administration.create_below(administration.admin, "equal", WRITE, MANAGE),
        "itself": manager,
        "above": administration.admin,
    }
    before = state(rows)
    refused = administration.change(path, clients[whose], caller=manager)
    assert (refused.status, refused.code) == (403, "FORBIDDEN")
    assert ("cannot change itself" if whose == "itself" else "no authority over client") in refused.json["message"]
    assert state(rows) == before


def test_client_manages_all_clients_below_it(administration: Administration, rows: Rows) -> None:
    """Those that it created and those that these created, also with all of its own scopes; they do not manage it."""
    manager = administration.create_below(administration.admin, "manager", MANAGE, WRITE)
    child = administration.create_below(manager, "child", MANAGE, WRITE)
    grandchild = administration.create_below(child, "grandchild", WRITE)
    created = {row["client_id"]: row["created_by"] for row in rows.execute("SELECT * FROM api_clients").fetchall()}
    assert created == {administration.admin: None, manager: administration.admin, child: manager, grandchild: child}
    for path in (ROTATE, LIMITS, REVOKE):
        assert administration.change(path, manager, caller=child).code == "FORBIDDEN"
    for client_id in (child, grandchild):
        for path in (ROTATE, LIMITS, REVOKE):
            assert administration.change(path, client_id, caller=manager).status == 200


def test_client_with_fewer_scopes_can_be_revoked_but_not_taken_over(administration: Administration, rows: Rows) -> None:
    """A leaked token can be stopped by a client with more scopes, which still gets no token of it."""
    manager = administration.create_root("manager", MANAGE, WRITE)
    shop = administration.create_root("shop", WRITE)
    for path in (ROTATE, LIMITS):
        assert administration.change(path, shop, caller=manager).code == "FORBIDDEN"
    assert administration.change(REVOKE, shop, caller=manager).status == 200
    assert is_revoked(rows, shop)


def test_client_gives_only_scopes_that_it_has(administration: Administration, rows: Rows) -> None:
    """By the scopes of its row, whatever the gateway decided earlier; the response names the scope."""
    manager = administration.create_below(administration.admin, "manager", MANAGE, WRITE)
    before = state(rows)
    refused = administration.create("shop", WRITE, READ, caller=manager)
    assert refused.code == "FORBIDDEN"
    assert "missing required scope entitlements:read" in refused.json["message"]
    assert state(rows) == before


def test_limits_of_a_client_are_not_higher_than_those_above_it(administration: Administration, rows: Rows) -> None:
    """A client does not lift its own limits by a client that it creates. Its limits may be the defaults."""
    manager = administration.create_root("manager", MANAGE, WRITE, limits=ClientLimits(rate_limit=10))
    child = administration.create_below(manager, "child", WRITE)
    statement = "SELECT rate_limit, burst_limit FROM api_clients WHERE client_id = %s"
    assert rows.execute(statement, (child,)).fetchall() == [{"rate_limit": 10, "burst_limit": None}]
    for caller, limits in (
        (manager, {"rate_limit": 11}),
        (manager, {"burst_limit": 401}),
        (administration.admin, {"rate_limit": 201}),
    ):
        refused = administration.create("greedy", WRITE, caller=caller, **limits)
        assert refused.code == "FORBIDDEN"
        assert "must be at most" in refused.json["message"]
    assert administration.change(LIMITS, child, caller=manager, rate_limit=11).code == "FORBIDDEN"
    lower = administration.change(LIMITS, child, caller=manager, rate_limit=3, burst_limit=400).json
    assert lower == {"client_id": child, "rate_limit": 3, "burst_limit": 400}
    default = administration.change(LIMITS, child, caller=manager).json
    assert default == {"client_id": child, "rate_limit": 10, "burst_limit": None}


def test_client_expires_with_those_above_it(administration: Administration, rows: Rows) -> None:
    """Whatever its own time is: also one that was created for longer, or rotated to live longer."""
    manager = administration.create_root("manager", MANAGE, WRITE, lifetime=timedelta(days=1))
    child = administration.create("child", MANAGE, WRITE, caller=manager, expires_in="30d").json
    grandchild = administration.create("grandchild", WRITE, caller=child["client_id"]).json
    rotated = administration.change(ROTATE, grandchild["client_id"], caller=manager, expires_in="90d").json
    ends = {each["expires_at"] for each in (child, grandchild, rotated)}
    listed = {client["name"]: client["expires_at"] for client in administration.send(CLIENTS).json["clients"]}
    assert {listed["manager"], listed["child"], listed["grandchild"]} == ends
    assert len(ends) == 1

    find = administration.database.clients.find
    ids = (manager, child["client_id"], grandchild["client_id"])
    assert [client and client.inactive_reason for client in map(find, ids)] == [None, None, None]
    expire = "UPDATE api_clients SET created_at = now() - interval '2 days', expires_at = now() - interval '1 day'"
    rows.execute(f"{expire} WHERE client_id = %s", (manager,))
    assert [client and client.inactive_reason for client in map(find, ids)] == ["expired"] * 3
    with pytest.raises(NotFoundError, match="also expires with that"):
        administration.database.clients.rotate(PERSON, grandchild["client_id"], timedelta(0), timedelta(days=1))
    administration.database.clients.rotate(PERSON, manager, timedelta(0), timedelta(days=60))
    assert [client and client.inactive_reason for client in map(find, ids)] == [None, None, None]
    extended = {client["name"]: datetime.fromisoformat(client["expires_at"]) for client in list_clients(administration)}
    assert extended["child"] < extended["manager"]
    assert extended["child"] == extended["grandchild"]


def list_clients(administration: Administration) -> list[dict[str, Any]]:
    """Return the listed clients that expire."""
    return [client for client in administration.send(CLIENTS).json["clients"] if client["expires_at"]]


@pytest.mark.parametrize("change", ["revoked_at = now()", "created_at = '2001-01-01', expires_at = '2002-01-01'"])
def test_inactive_client_changes_nothing(administration: Administration, rows: Rows, change: str) -> None:
    """At once, although the gateway still has its decision about this client."""
    manager = administration.create_root("manager")
    child = administration.create_below(manager, "child", WRITE)
    rows.execute(f"UPDATE api_clients SET {change} WHERE client_id = '{manager}'".encode())  # noqa: S608
    assert administration.create("new", WRITE, caller=manager).code == "FORBIDDEN"
    for path in (ROTATE, LIMITS, REVOKE):
        assert administration.change(path, child, caller=manager).code == "FORBIDDEN"


def test_client_is_revoked_with_its_descendants(administration: Administration, rows: Rows) -> None:
    """Only if asked for; also after it was revoked alone. Each of them leaves an action."""
    manager = administration.create_below(administration.admin, "manager")
    child = administration.create_below(manager, "child")
    grandchild = administration.create_below(child, "grandchild")
    sibling = administration.create_below(administration.admin, "sibling")
    alone = administration.change(REVOKE, child, caller=administration.admin).json
    assert (alone["descendants_revoked"], alone["descendants_active"]) == (0, 1)
    assert not is_revoked(rows, grandchild)
    both = administration.change(REVOKE, manager, caller=administration.admin, with_descendants=True).json
    assert (both["descendants_revoked"], both["descendants_active"]) == (1, 0)
    assert [is_revoked(rows, client_id) for client_id in (manager, child, grandchild, sibling)] == [
        True,
        True,
        True,
        False,
    ]
    statement = """
    SELECT client_id, count FROM operator_actions
     WHERE action = 'revoke' AND selection @> '{"with_descendants": true}' ORDER BY batch
    """
    recorded = [(row["client_id"], row["count"]) for row in rows.execute(statement).fetchall()]
    assert recorded == [(manager, 1), (grandchild, 1)]


def test_operator_with_access_to_the_database_is_not_limited(administration: Administration, rows: Rows) -> None:
    """The first administrator manages every client, also one with all scopes."""
    clients = administration.database.clients
    child = administration.create_below(administration.admin, "child")
    clients.set_limits(PERSON, administration.admin, ClientLimits(1000, 2000))
    clients.rotate(PERSON, administration.admin, timedelta(0), timedelta(days=1))
    assert clients.revoke(PERSON, administration.admin, with_descendants=True) == (1, 0)
    assert is_revoked(rows, child)


@pytest.mark.parametrize("order", ["creation first", "revocation first"])
def test_no_child_survives_a_concurrent_revocation(
    administration: Administration, rows: Rows, clients_url: str, order: str
) -> None:
    """A client that is created while those above it are revoked is revoked with them, or refused."""
    clients = administration.database.clients
    manager = administration.create_below(administration.admin, "manager")
    child = administration.create_below(manager, "child")
    creation = {"action": "create", "name": "late", "scopes": ["entitlements:write"], "actor": "ann", "reason": "r"}

    def create(tx: psycopg.Connection[Any]) -> object:
        return authorize(tx, child, ClientCommand.parse(creation), LimitSettings(200, 400)).execute(
            clients, "tests", tx
        )

    def revoke(tx: psycopg.Connection[Any]) -> object:
        return clients.revoke(PERSON, manager, with_descendants=True, within=tx)

    with psycopg.connect(clients_url) as first, psycopg.connect(clients_url) as second:
        if order == "creation first":
            create(first)
            assert meet(first, second, rows, revoke) == ((2, 0), True)
        else:
            revoke(first)
            with pytest.raises(ForbiddenError, match="was revoked"):
                meet(first, second, rows, create)
    assert not_revoked(rows) == ["admin"]


def test_no_child_survives_a_storm_of_creations(administration: Administration, rows: Rows, clients_url: str) -> None:
    """Six clients create clients below each other while the one above all is revoked."""
    manager = administration.create_below(administration.admin, "manager")
    parents = [administration.create_below(manager, f"parent {number}") for number in range(6)]

    def act(number: int) -> int:
        with Administration(clients_url, administration.admin) as other:
            if number == len(parents):
                revoked = other.change(REVOKE, manager, caller=administration.admin, with_descendants=True)
                return revoked.status
            parent = parents[number]
            for attempt in range(15):
                created = other.create(f"{number}.{attempt}", caller=parent)
                if created.status != 200:
                    return created.status
                parent = created.json["client_id"]
            return 200

    statuses = run_concurrently(len(parents) + 1, act)
    assert statuses[-1] == 200
    assert set(statuses) <= {200, 403}
    assert not_revoked(rows) == ["admin"]


def test_two_rotations_at_once_leave_two_valid_tokens(
    administration: Administration, rows: Rows, clients_url: str
) -> None:
    """Both succeed, one after the other; the last token and the one before it are valid, and the first is not."""
    child = administration.create_below(administration.admin, "child")
    (first,) = rows.execute("SELECT token_hash FROM api_clients WHERE client_id = %s", (child,)).fetchall()

    def rotate(_: int) -> str:
        with Administration(clients_url, administration.admin) as other:
            return str(other.change(ROTATE, child, caller=administration.admin).json["token"])

    tokens = run_concurrently(2, rotate)
    assert len(set(tokens)) == 2
    (row,) = rows.execute("SELECT * FROM api_clients WHERE client_id = %s", (child,)).fetchall()
    assert {row["token_hash"], row["previous_hash"]} == {Token.from_header(f"Bearer {token}").hash for token in tokens}
    assert first["token_hash"] not in row.values()
