"""G11: a client with the scope clients:write cannot make so many clients that others suffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from grantwire.clients.authority import MAX_CLIENTS_OF_TREE, MAX_LEVELS
from grantwire.clients.authorizer import Authorizer
from grantwire.clients.lookup import LimitedLookup
from grantwire.clients.scopes import Scope
from grantwire.clients.tokens import Token, generate_client_id
from grantwire.errors import UnauthenticatedError
from tests.support.client_administration import Administration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows

ARN = "arn:aws:execute-api:eu-central-1:123456789012:abcdef1234/prod/GET/v1/users/u/entitlements"
MANAGE = Scope.WRITE_CLIENTS


@pytest.fixture
def administration(clients_url: str) -> Iterator[Administration]:
    """Caller of the function, with a client that has all scopes."""
    with Administration(clients_url) as administration:
        yield administration


def insert(rows: Rows, count: int, **columns: str) -> None:
    """Insert clients; the values are SQL."""
    names, values = ", ".join(columns), ", ".join(columns.values())
    rows.execute(
        f"""
        INSERT INTO api_clients (client_id, name, scopes, token_hash, {names})
        SELECT lpad(n::text, 12, 'z'), 'client ' || n, '{{clients:write}}', repeat('0', 64), {values}
          FROM generate_series(1, {count}) n""".encode()  # noqa: S608
    )


def decide(authorizer: Authorizer, client_id: str) -> str:
    """Return the reason of the decision about a token of this client with a wrong secret."""
    return authorizer.decide(f"Bearer {Token.mint('test', client_id).text}").reason


@pytest.mark.parametrize("created_at", ["now() - interval '2 days'", "now()"])
@pytest.mark.parametrize("state", ["active", "revoked", "expired"])
def test_tree_of_clients_is_limited(administration: Administration, rows: Rows, state: str, created_at: str) -> None:
    """The clients of others do not count, nor those that ended more than a day ago. Children count for all above."""
    manager = administration.create_below(administration.admin, "manager", MANAGE)
    child = administration.create_below(manager, "child", MANAGE)
    ends = {
        "active": {},
        "revoked": {"revoked_at": "now()"},
        "expired": {"expires_at": f"{created_at} + interval '1 microsecond'"},
    }[state]
    insert(rows, MAX_CLIENTS_OF_TREE - 4, created_at=created_at, created_by=f"'{child}'", **ends)
    administration.create_below(child, "last", MANAGE)
    is_full = state == "active" or created_at == "now()"
    for caller in (child, manager, administration.admin):
        created = administration.create("more", MANAGE, caller=caller)
        assert created.code == ("FORBIDDEN" if is_full else None), caller
        if not is_full:
            return
        assert f"at most {MAX_CLIENTS_OF_TREE} are possible" in created.json["message"]
    other = administration.create_root("another first client")
    assert administration.create("of the other", MANAGE, caller=other).status == 200


def test_levels_of_clients_are_limited(administration: Administration) -> None:
    """Each look-up reads all clients above: a chain of 990 clients made the list of clients end by its timeout."""
    caller = administration.admin
    for level in range(2, MAX_LEVELS + 1):
        caller = administration.create_below(caller, f"level {level}", MANAGE)
    refused = administration.create("too low", MANAGE, caller=caller)
    assert refused.code == "FORBIDDEN"
    assert f"a client with {MAX_LEVELS - 1} clients above it cannot create clients" in refused.json["message"]


def test_end_of_a_client_reads_only_the_clients_above_it(administration: Administration, rows: Rows) -> None:
    """Also before the statistics of the table exist. Recursion read the whole table for each client."""
    insert(rows, 500, created_by=f"'{administration.admin}'")
    read = "SELECT seq_tup_read, idx_scan FROM pg_stat_xact_user_tables WHERE relname = 'api_clients'"
    with rows.transaction():
        (before,) = rows.execute(read).fetchall()
        rows.execute("SELECT client_expires_at(lpad(n::text, 12, 'z')) FROM generate_series(1, 500) n")
        (after,) = rows.execute(read).fetchall()
    assert {name: after[name] - before[name] for name in after} == {"seq_tup_read": 0, "idx_scan": 1000}


@pytest.mark.parametrize(("count", "reason"), [(9_000, None), (10_000, "unknown token")])
def test_old_client_is_found_whoever_else_was_created(
    administration: Administration, rows: Rows, count: int, reason: str | None
) -> None:
    """Invented tokens are refused without a look-up only while all clients are known, so none of these is refused."""
    old = administration.admin
    insert(rows, count, created_at="now() + interval '1 second'")
    lookup = LimitedLookup(administration.database.clients, lambda: 100.0)
    authorizer = Authorizer(lookup, "test")
    assert decide(authorizer, generate_client_id()) == "unknown token"
    if reason is None:
        with pytest.raises(UnauthenticatedError):
            decide(authorizer, generate_client_id())
    else:
        assert decide(authorizer, generate_client_id()) == reason
    assert lookup.find(old) is not None


@pytest.mark.parametrize(("days", "is_known"), [(29, True), (31, False)])
def test_clients_that_were_revoked_long_ago_do_not_count(
    administration: Administration, rows: Rows, days: int, is_known: bool
) -> None:
    """Otherwise clients, which cannot be deleted, would end the protection from invented tokens for ever."""
    insert(rows, 10_000, revoked_at=f"now() - interval '{days} days'", created_at="now() - interval '40 days'")
    _, ids = administration.database.clients.find_or_list_ids(generate_client_id())
    assert (ids is None) == is_known
    assert ids is None or ids == {administration.admin}
