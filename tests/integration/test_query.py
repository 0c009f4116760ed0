"""E4: a user's rights from the system of record, in order, in pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.integration.conftest import Rows
    from tests.support.client import Client


def test_a_user_without_rights_gets_an_empty_list(client: Client) -> None:
    """E4: unknown is not an error."""
    reply = client.list_entitlements("nobody")
    assert (reply.status, reply.body) == (200, '{"user_id":"nobody","entitlements":[]}')


def test_rights_are_listed_by_sku_with_their_state(client: Client) -> None:
    """E4: ACTIVE and REVOKED alike, and nobody else's."""
    for number, sku in enumerate(["b", "a", "B", "é"]):
        client.grant(f"k{number}", stock_keeping_unit=sku)
    client.grant("other", user_id="u_9")
    revoked = client.revoke("k9", stock_keeping_unit="a").json
    reply = client.list_entitlements()
    assert reply.status == 200
    assert [right["stock_keeping_unit"] for right in reply.json["entitlements"]] == ["B", "a", "b", "é"]
    assert reply.json["entitlements"][1] == {name: revoked[name] for name in revoked if name != "user_id"}
    assert list(reply.json) == ["user_id", "entitlements"]


def test_a_long_list_comes_in_pages(client: Client, rows: Rows) -> None:
    """E4: at most 1,000, then limit and after; next_after is there while there is more."""
    rows.execute("""
        INSERT INTO entitlements SELECT 'u_123', 'sku-' || lpad(n::text, 4, '0'), 'ACTIVE', 1, now()
          FROM generate_series(1, 1001) n""")
    first = client.list_entitlements().json
    assert len(first["entitlements"]) == 1000
    assert first["next_after"] == "sku-1000"
    rest = client.list_entitlements(after=first["next_after"]).json
    assert [right["stock_keeping_unit"] for right in rest["entitlements"]] == ["sku-1001"]
    assert "next_after" not in rest

    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = client.list_entitlements(limit="300", **after).json
        seen += [right["stock_keeping_unit"] for right in page["entitlements"]]
        if "next_after" not in page:
            break
        after = {"after": page["next_after"]}
    assert seen == [f"sku-{number:04}" for number in range(1, 1002)]


def test_a_page_that_ends_with_the_last_right_has_no_next(client: Client) -> None:
    """E4: exactly `limit` rights left is the end."""
    for number in range(2):
        client.grant(f"k{number}", stock_keeping_unit=f"s{number}")
    page = client.list_entitlements(limit="2").json
    assert len(page["entitlements"]) == 2
    assert "next_after" not in page


def test_a_path_is_decoded_once_wherever_it_comes_from(client: Client) -> None:
    """AWS passes a path parameter on encoded, the emulators decoded; both mean the same user."""
    for number, user in enumerate(["a b", "ü@x", "50%", "a/b"]):
        client.grant(f"k{number}", user_id=user)
    for sent, user in {
        "a%20b": "a b",
        "a b": "a b",
        "%C3%BC@x": "ü@x",
        "ü@x": "ü@x",
        "50%25": "50%",
        "50%": "50%",
        "a%2Fb": "a/b",
    }.items():
        reply = client.list_entitlements(sent).json
        assert (reply["user_id"], len(reply["entitlements"])) == (user, 1)


def test_the_list_reads_the_primary_key(rows: Rows) -> None:
    """Pages of a user with many rights, among many users, cost the page and no more."""
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
