"""P1: the route that shows a user's rights at a glance, from the read model."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from functions.show_summary.handler import handler
from grantwire.database import Database, DatabaseSettings
from grantwire.read_model.model import project
from grantwire.read_model.summary import _SUMMARISE, Summaries
from grantwire.runtime.summary import SummaryRuntime
from grantwire.settings import load
from tests.support.client import Client, Response, event
from tests.support.contract import assert_matches_contract
from tests.support.paths import ROOT
from tests.support.plaintext import PLAINTEXT
from tests.support.read_model import Right, clear, payloads, right

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows
    from tests.support.servers import Databases

SUMMARY = "/v1/users/{user_id}/summary"


def ask(runtime: SummaryRuntime, user_id: str = "u_123", method: str = "GET", **parts: Any) -> Response:
    """What the function answers, held against the API document."""
    request = event(method, SUMMARY, pathParameters={"user_id": user_id}, **parts)
    answer = handler.with_runtime(runtime)(request, None)
    reply = Response(answer["statusCode"], answer["headers"], answer["body"])
    assert_matches_contract(method, SUMMARY, reply.status, reply.headers, reply.body)
    return reply


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One database for all; each test begins with empty tables."""
    url = databases.migrated()
    yield url
    databases.drop(url)


@contextmanager
def running(database_url: str) -> Iterator[SummaryRuntime]:
    """What the function works with."""
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    yield SummaryRuntime(Summaries(database))
    database.close()


@pytest.fixture
def runtime(database_url: str, rows: Rows) -> Iterator[SummaryRuntime]:
    """The function's runtime, and a read model that knows nobody."""
    clear(rows)
    with running(database_url) as runtime:
        yield runtime


@pytest.fixture
def unconnected() -> SummaryRuntime:
    """A runtime that no answer may come from: what is refused asks no database."""
    return SummaryRuntime.build({**PLAINTEXT, "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"})


def known(database_url: str, *rights: Right) -> None:
    """Project the events that led to these."""
    with psycopg.connect(database_url) as tx:
        project(tx, payloads(rights))


def test_a_summary_has_counts_active_rights_and_the_last_change(runtime: SummaryRuntime, database_url: str) -> None:
    """P1: exactly these members in this order, rights by code point, and nobody else's."""
    known(database_url, *(right("u_123", 1, sku) for sku in ("b", "é", "B", 'a"\\')), right("u_123", 4, "a"))
    known(database_url, right("u_12", 9), right("u_1234", 9))
    reply = ask(runtime)
    assert reply.status == 200
    assert reply.body == (
        '{"user_id":"u_123","active":4,"revoked":1,"active_rights":["B","a\\"\\\\","b","é"],"last_change":'
        '{"stock_keeping_unit":"a","status":"REVOKED","version":4,"changed_at":"2026-01-08T07:10:04.000000Z"}}'
    )


def test_a_user_nobody_knows_has_none_of_anything(runtime: SummaryRuntime) -> None:
    """P1: unknown is not an error."""
    reply = ask(runtime, "nobody/ü")
    assert reply.body == '{"user_id":"nobody/ü","active":0,"revoked":0,"active_rights":[],"last_change":null}'


def test_a_user_whose_rights_are_all_revoked_still_has_a_last_change(
    runtime: SummaryRuntime, database_url: str
) -> None:
    """P1: counts of both kinds."""
    known(database_url, right("u_123", 2, "a"), right("u_123", 4, "b"))
    summary = ask(runtime).json
    assert (summary["active"], summary["revoked"], summary["active_rights"]) == (0, 2, [])
    assert summary["last_change"]["stock_keeping_unit"] == "b"


def test_changes_at_the_same_time_have_one_order(runtime: SummaryRuntime, database_url: str) -> None:
    """P1: the later version is the later change, and then the name decides, so that an answer does not flicker."""
    same = [
        right("u_123", version, sku)._replace(time=right("u", 1).time)
        for sku, version in (("c", 3), ("b", 3), ("a", 1))
    ]
    known(database_url, *same)
    assert {ask(runtime).json["last_change"]["stock_keeping_unit"] for _ in range(3)} == {"b"}


def test_the_list_is_bounded_and_the_counts_are_not(runtime: SummaryRuntime, rows: Rows) -> None:
    """P1: the first thousand active rights; the count tells that there are more."""
    rows.execute("""
        INSERT INTO user_entitlements
        SELECT 'u_123', 'sku-' || lpad(n::text, 4, '0'), CASE WHEN n % 10 = 0 THEN 'REVOKED' ELSE 'ACTIVE' END, 1, now()
          FROM generate_series(1, 2000) n""")
    summary = ask(runtime).json
    assert (summary["active"], summary["revoked"], len(summary["active_rights"])) == (1800, 200, 1000)
    assert summary["active_rights"] == sorted(summary["active_rights"])
    assert (summary["active_rights"][0], summary["active_rights"][-1]) == ("sku-0001", "sku-1111")


def test_the_summary_follows_the_events_not_the_record(
    runtime: SummaryRuntime, client: Client, database_url: str
) -> None:
    """P1: eventually consistent, as the API document says; the other route is exact."""
    granted = client.grant("k1").json
    assert ask(runtime).json["active"] == 0
    assert len(client.list_entitlements().json["entitlements"]) == 1
    known(database_url, right("u_123", 1))
    assert ask(runtime).json["active_rights"] == [granted["stock_keeping_unit"]]


@pytest.mark.parametrize("user_id", ["", " ", "u" * 129, "a\x00b", "a\x85", "%ED%A0%80"])
def test_a_bad_user_is_refused(unconnected: SummaryRuntime, user_id: str) -> None:
    """E5: the same rules for a name as everywhere."""
    assert ask(unconnected, user_id).code == "BAD_REQUEST"


@pytest.mark.parametrize("query", [{"limit": "1"}, {"after": "x"}, {"": ""}, {"\ud800" * 200: "1"}])
def test_query_parameters_are_refused(unconnected: SummaryRuntime, query: dict[str, str]) -> None:
    """E5: there are none, and a misspelt or imagined one must not be ignored."""
    reply = ask(unconnected, queryStringParameters=query)
    assert reply.code == "BAD_REQUEST"
    assert "there are none" in reply.json["message"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_another_method_is_refused(unconnected: SummaryRuntime, method: str) -> None:
    """E5: the function says which one the path takes."""
    reply = ask(unconnected, method=method)
    assert (reply.status, reply.headers["Allow"]) == (405, "GET")


def test_another_path_is_not_found(unconnected: SummaryRuntime) -> None:
    """E5: an event of another resource."""
    answer = handler.with_runtime(unconnected)(event("GET", "/v1/users/{user_id}/summaries"), None)
    assert answer["statusCode"] == 404


def test_no_database_is_a_503_and_it_recovers_by_itself(server: PostgresServer) -> None:
    """E5: with Retry-After, while PostgreSQL is stopped; the same environment answers afterwards."""
    with running(server.url()) as runtime:
        assert ask(runtime).status == 200
        server.stop()
        try:
            reply = ask(runtime)
        finally:
            server.start()
        assert (reply.status, reply.code) == (503, "UNAVAILABLE")
        assert int(reply.headers["Retry-After"]) >= 1
        assert ask(runtime).status == 200


def test_the_summary_reads_the_primary_key(rows: Rows) -> None:
    """P1: one user's rows among many, by the statement itself."""
    rows.execute("""
        INSERT INTO user_entitlements SELECT 'u' || n % 1000, 's' || n, 'ACTIVE', 1, now()
          FROM generate_series(1, 20000) n""")
    rows.execute("ANALYZE user_entitlements")
    plan = rows.execute(f"EXPLAIN {_SUMMARISE}", {"user_id": "u7", "most": 1000}).fetchall()
    text = "\n".join(line["QUERY PLAN"] for line in plan)
    assert "user_entitlements_pkey" in text
    assert "Seq Scan" not in text


def test_the_event_file_asks_for_the_user_of_the_others(runtime: SummaryRuntime, database_url: str) -> None:
    """S2: `sam local invoke` shows the right that the grant's event file gives."""
    known(database_url, right("u_123", 1))
    answer = handler.with_runtime(runtime)(json.loads((ROOT / "infra/events/show_summary.json").read_text()), None)
    granted = json.loads(json.loads((ROOT / "infra/events/grant.json").read_text())["body"])
    assert json.loads(answer["body"])["active_rights"] == [granted["stock_keeping_unit"]]
