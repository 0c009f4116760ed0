"""K2: checking many entitlements in one call."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from grantwire.entitlements.read_requests import MAX_CHECKS, MAX_CHECKS_BYTES
from tests.support.checks import CHECKS, CheckClient, write_entitlement
from tests.support.module_database import database_url
from tests.support.round_trips import RoundTrips

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows

__all__ = ["database_url"]

PAST, FUTURE = "2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z"
TIMES_OF_CHECK = {"checked_at", "cache_until"}


@pytest.fixture
def client(database_url: str, rows: Rows) -> Iterator[CheckClient]:
    """A caller, with one entitlement of each kind."""
    rows.execute("TRUNCATE entitlements")
    write_entitlement(rows, sku="active", starts_at=PAST, expires_at=FUTURE)
    write_entitlement(rows, sku="scheduled", starts_at=FUTURE)
    write_entitlement(rows, sku="ended", expires_at=PAST)
    write_entitlement(rows, sku="recorded", status="EXPIRED", expires_at=PAST)
    write_entitlement(rows, sku="revoked", status="REVOKED")
    write_entitlement(rows, user_id='quote"s\\ ü', sku="active")
    with CheckClient(database_url) as client:
        yield client


PAIRS = [
    ("u_123", "revoked"),
    ("u_123", "active"),
    ("unknown", "active"),
    ("u_123", "scheduled"),
    ("u_123", "ended"),
    ("u_123", "recorded"),
    ('quote"s\\ ü', "active"),
    ("u_123", "active"),
    ("u_123", "none"),
]


def test_results_are_those_of_single_checks_in_the_order_of_the_request(client: CheckClient) -> None:
    """K2: the same objects, also for repeated pairs, at one moment."""
    response = client.check_many(*PAIRS)
    assert response.headers["Cache-Control"] == "no-store"
    assert "ETag" not in response.headers
    results = response.json["results"]
    assert [result["status"] for result in results] == [
        *("REVOKED", "ACTIVE", "NONE", "SCHEDULED", "EXPIRED", "EXPIRED", "ACTIVE", "ACTIVE", "NONE"),
    ]
    for pair, result in zip(PAIRS, results, strict=True):
        single = client.check(*pair).json
        assert list(result) == list(single)
        assert _without_times(result) == _without_times(single)
    assert len({result["checked_at"] for result in results}) == 1


def test_result_is_written_like_a_single_check(client: CheckClient) -> None:
    """K2: the same JSON text, but for the two times of the check."""
    single = client.check("u_123", "active").body.partition(',"checked_at"')[0]
    assert client.check_many(("u_123", "active")).body.startswith(f'{{"results":[{single},"checked_at":"')


def test_most_and_fewest_checks(client: CheckClient) -> None:
    """K2: one, and 200 with the longest names."""
    assert len(client.check_many(("u_123", "active")).json["results"]) == 1
    names = [(f"{number:03}" + "u" * 125, f"{number:03}" + "s" * 125) for number in range(MAX_CHECKS)]
    results = client.check_many(*names).json["results"]
    assert [(result["user_id"], result["stock_keeping_unit"]) for result in results] == names


def test_body_of_the_largest_size_is_accepted(client: CheckClient) -> None:
    """E5: 128 KiB, and not a byte more."""
    body = json.dumps({"checks": [{"user_id": "u_123", "stock_keeping_unit": "active"}]})
    assert client.send("POST", CHECKS, body=body.ljust(MAX_CHECKS_BYTES)).status == 200
    too_large = client.send("POST", CHECKS, body=body.ljust(MAX_CHECKS_BYTES + 1))
    assert (too_large.status, too_large.json["message"]) == (413, "the body must have at most 131072 bytes")


def test_checks_take_one_round_trip(database_url: str, client: CheckClient) -> None:
    """K2: however many there are."""
    del client  # it writes the entitlements
    with RoundTrips(database_url) as proxy, CheckClient(proxy.url) as caller:
        caller.check_many(*PAIRS)
        caller.check_many(*PAIRS)
        before = proxy.count
        caller.check_many(*PAIRS)
        assert proxy.since(before) == 1


def test_checks_write_nothing(client: CheckClient, rows: Rows) -> None:
    """K2: a POST without an idempotency key, because it changes nothing."""
    counts = "SELECT (SELECT count(*) FROM idempotency_keys) + (SELECT count(*) FROM entitlement_audit) AS n"
    client.check_many(*PAIRS)
    assert rows.execute(counts).fetchone() == {"n": 0}


def _without_times(result: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in result.items() if name not in TIMES_OF_CHECK}
