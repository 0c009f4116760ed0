"""E4: listing a user's entitlements from the system of record, in order and in pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.checks import write_entitlement
from tests.support.client import Client

if TYPE_CHECKING:
    from tests.integration.conftest import Rows


def test_unknown_user_has_an_empty_list(client: Client) -> None:
    """E4: an unknown user is not an error."""
    response = client.list_entitlements("unknown")
    assert (response.status, response.body) == (200, '{"user_id":"unknown","entitlements":[]}')


def test_entitlements_are_listed_by_sku_with_their_status(client: Client) -> None:
    """E4: ACTIVE and REVOKED entitlements of this user only."""
    for number, sku in enumerate(["b", "a", "B", "é"]):
        client.grant(f"k{number}", stock_keeping_unit=sku)
    client.grant("other", user_id="u_9")
    revoked = client.revoke("k9", stock_keeping_unit="a").json
    response = client.list_entitlements()
    assert response.status == 200
    assert [entitlement["stock_keeping_unit"] for entitlement in response.json["entitlements"]] == ["B", "a", "b", "é"]
    assert response.json["entitlements"][1] == {name: revoked[name] for name in revoked if name != "user_id"}
    assert list(response.json) == ["user_id", "entitlements"]


@pytest.mark.parametrize("grace", ["0s", "1h"])
def test_status_in_the_list_is_the_current_one(database_url: str, rows: Rows, grace: str) -> None:
    """K3, K5: by the clock of the database, although the stored status is ACTIVE; times are shown where set."""
    past, future = "2001-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"
    write_entitlement(rows, sku="a", updated_at=past)
    write_entitlement(rows, sku="b", updated_at=past, starts_at=past, expires_at=future)
    write_entitlement(rows, sku="c", updated_at=past, starts_at=future)
    write_entitlement(rows, sku="d", updated_at=past, expires_at=past)
    write_entitlement(rows, sku="e", updated_at=past, status="EXPIRED", expires_at=past)
    write_entitlement(rows, sku="f", updated_at=past, status="REVOKED", starts_at=future)
    rows.execute("""
        INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at, expires_at)
        VALUES ('u_123', 'g', 'ACTIVE', 1, now(), now() - interval '1 minute')""")
    with Client(database_url, ENTITLEMENT_GRACE=grace) as client:
        body = client.list_entitlements().body
    common = f'"version":1,"updated_at":"{past}"'
    assert body.startswith(
        '{"user_id":"u_123","entitlements":['
        f'{{"stock_keeping_unit":"a","status":"ACTIVE",{common}}},'
        f'{{"stock_keeping_unit":"b","status":"ACTIVE",{common},"starts_at":"{past}","expires_at":"{future}"}},'
        f'{{"stock_keeping_unit":"c","status":"SCHEDULED",{common},"starts_at":"{future}"}},'
        f'{{"stock_keeping_unit":"d","status":"EXPIRED",{common},"expires_at":"{past}"}},'
        f'{{"stock_keeping_unit":"e","status":"EXPIRED",{common},"expires_at":"{past}"}},'
        f'{{"stock_keeping_unit":"f","status":"REVOKED",{common},"starts_at":"{future}"}},'
        f'{{"stock_keeping_unit":"g","status":"{"ACTIVE" if grace == "1h" else "EXPIRED"}",'
    )


def test_long_list_has_pages(client: Client, rows: Rows) -> None:
    """E4: a page has at most 1,000 entries; `limit` and `after` select it. next_after is present if more follow."""
    rows.execute("""
        INSERT INTO entitlements SELECT 'u_123', 'sku-' || lpad(n::text, 4, '0'), 'ACTIVE', 1, now()
          FROM generate_series(1, 1001) n""")
    first = client.list_entitlements().json
    assert len(first["entitlements"]) == 1000
    assert first["next_after"] == "sku-1000"
    rest = client.list_entitlements(after=first["next_after"]).json
    assert [entitlement["stock_keeping_unit"] for entitlement in rest["entitlements"]] == ["sku-1001"]
    assert "next_after" not in rest

    listed: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = client.list_entitlements(limit="300", **after).json
        listed += [entitlement["stock_keeping_unit"] for entitlement in page["entitlements"]]
        if "next_after" not in page:
            break
        after = {"after": page["next_after"]}
    assert listed == [f"sku-{number:04}" for number in range(1, 1002)]


def test_full_last_page_has_no_next_after(client: Client) -> None:
    """E4: exactly `limit` entitlements are left."""
    for number in range(2):
        client.grant(f"k{number}", stock_keeping_unit=f"s{number}")
    page = client.list_entitlements(limit="2").json
    assert len(page["entitlements"]) == 2
    assert "next_after" not in page


def listed_skus(client: Client, **query: str) -> list[str]:
    """Return the stock keeping units of all pages, which must not be more than the entitlements."""
    listed: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = client.list_entitlements(**query, **after).json
        listed += [entitlement["stock_keeping_unit"] for entitlement in page["entitlements"]]
        if "next_after" not in page:
            return listed
        after = {"after": page["next_after"]}


def test_status_selects_by_the_current_one(client: Client, rows: Rows) -> None:
    """E4, T11: an end that no worker has recorded counts, and pages continue after the last entry."""
    past, future = "2001-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"
    for number in range(3):
        write_entitlement(rows, sku=f"active-{number}", updated_at=past)
    write_entitlement(rows, sku="ended", updated_at=past, expires_at=past)
    write_entitlement(rows, sku="later", updated_at=past, starts_at=future)
    write_entitlement(rows, sku="revoked", updated_at=past, status="REVOKED")
    assert listed_skus(client, status="ACTIVE", limit="2") == ["active-0", "active-1", "active-2"]
    assert listed_skus(client, status="EXPIRED") == ["ended"]
    assert listed_skus(client, status="SCHEDULED") == ["later"]
    assert listed_skus(client, status="REVOKED") == ["revoked"]
    assert client.list_entitlements(status="NONE").code == "BAD_REQUEST"


def test_prefix_selects_names_that_begin_with_it(client: Client) -> None:
    """T11: with any characters, also those that a pattern would interpret; together with a status and `after`."""
    for number, sku in enumerate(["a", "a%", "a%b", "aB", "ab", "ab\U0010ffff", "abc", "b"]):
        client.grant(f"k{number}", stock_keeping_unit=sku)
    client.revoke("r", stock_keeping_unit="abc")
    assert listed_skus(client, prefix="a", limit="2") == ["a", "a%", "a%b", "aB", "ab", "abc", "ab\U0010ffff"]
    assert listed_skus(client, prefix="a%") == ["a%", "a%b"]
    assert listed_skus(client, prefix="ab") == ["ab", "abc", "ab\U0010ffff"]
    assert listed_skus(client, prefix="ab", status="REVOKED") == ["abc"]
    assert listed_skus(client, prefix="a", after="aB") == ["ab", "abc", "ab\U0010ffff"]
    assert listed_skus(client, prefix="c") == []


def test_page_with_a_status_examines_a_limited_number(client: Client, rows: Rows) -> None:
    """E4, T11: a page may be empty and still have next_after, so no request reads all entitlements of a user."""
    rows.execute("""
        INSERT INTO entitlements
        SELECT 'u_123', 's' || lpad(n::text, 5, '0'), CASE WHEN n > 10002 THEN 'REVOKED' ELSE 'ACTIVE' END, 1, now()
          FROM generate_series(1, 10005) n""")
    first = client.list_entitlements(status="REVOKED").json
    assert (first["entitlements"], first["next_after"]) == ([], "s10000")
    assert listed_skus(client, status="REVOKED", limit="2") == ["s10003", "s10004", "s10005"]
    assert len(listed_skus(client, status="ACTIVE", limit="1000")) == 10002


@pytest.mark.parametrize("user", ["a b", "ü@x", "50%", "a/b", "a%2Fb", "%25"])
def test_user_id_with_special_characters_is_found(client: Client, user: str) -> None:
    """E4: percent-encoded once, as callers must send it, it is the user of the grant."""
    client.grant("k", user_id=user)
    response = client.list_entitlements(user).json
    assert (response["user_id"], len(response["entitlements"])) == (user, 1)


def test_listing_reads_the_primary_key(rows: Rows) -> None:
    """The cost of a page does not depend on the number of users or entitlements."""
    rows.execute("""
        INSERT INTO entitlements SELECT 'u' || n % 100, 's' || n, 'ACTIVE', 1, now()
          FROM generate_series(1, 20000) n""")
    rows.execute("ANALYZE entitlements")
    plan = rows.execute("""
        EXPLAIN SELECT stock_keeping_unit FROM entitlements
         WHERE user_id = 'u7' AND stock_keeping_unit > 's5' ORDER BY stock_keeping_unit LIMIT 11""").fetchall()
    text = "\n".join(line["QUERY PLAN"] for line in plan)
    assert "entitlements_pkey" in text
    assert "Sort" not in text
