"""T10: clients that expire soon are a problem of the status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.test_operations_problems import ops, problems_of
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from tests.integration.conftest import Rows
    from tests.support.operations import OpsClient

__all__ = ["ops"]

pytestmark = newest_postgres

CREATE_CLIENT = """
INSERT INTO api_clients (client_id, name, scopes, token_hash, created_at, expires_at, revoked_at, created_by)
VALUES (lpad(%(name)s, 12, '0'), %(name)s, ARRAY['ops:read'], repeat('0', 64), now() - %(age)s::interval,
        now() + %(left)s::interval, CASE WHEN %(revoked)s THEN now() END, %(above)s)
"""


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"left": "13 days 1 hour"}, "1 client expires soon, or expired: shop (00000000shop) in 13 days"),
        ({"left": "-3 hours -1 minute"}, "1 client expires soon, or expired: shop (00000000shop) 3 hours ago"),
        ({"left": "15 days"}, None),
        ({"left": "-25 hours"}, None),
        ({"left": "5 hours", "age": "1 hour"}, None),  # made to end soon
        ({"left": "5 days", "revoked": True}, None),
        ({"left": None}, None),
    ],
)
def test_client_that_expires_soon_is_a_problem(
    ops: OpsClient, rows: Rows, client: dict[str, Any], message: str | None
) -> None:
    """T10: with its name, from a setting before its end to a day after it. One that was made for a day is not."""
    with rows.transaction(force_rollback=True):
        rows.execute(CREATE_CLIENT, {"name": "shop", "age": "60 days", "revoked": False, "above": None} | client)
        found = problems_of(rows, ops)
        assert [problem["message"] for problem in found.values()] == ([] if message is None else [message])


def test_many_clients_that_expire_are_counted_and_the_first_are_named(ops: OpsClient, rows: Rows) -> None:
    """T10: a client that ends only with one above it is not named, because rotating the one above is the repair."""
    with rows.transaction(force_rollback=True):
        for number in range(7):
            parameters = {"age": "60 days", "revoked": False, "left": f"{number + 2} days 1 hour", "above": None}
            rows.execute(CREATE_CLIENT, parameters | {"name": f"c{number}"})
        below = {"age": "60 days", "revoked": False, "left": None, "above": "0000000000c0"}
        rows.execute(CREATE_CLIENT, below | {"name": "below"})
        message = problems_of(rows, ops)["CLIENT_EXPIRES"]["message"]
    assert message.startswith("7 clients expire soon, or expired: c0 (0000000000c0) in 2 days, c1")
    assert message.endswith("c4 (0000000000c4) in 6 days, 2 others")
