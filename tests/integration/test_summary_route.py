"""P1: the route that returns a user's summary from the read model."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row

from functions.show_summary.handler import handler
from grantwire.database import Database, DatabaseSettings
from grantwire.read_model.model import project
from grantwire.read_model.summary import SUMMARIZE, Summaries
from grantwire.settings import load
from grantwire.wiring.routes.show_summary import SummaryRuntime
from tests.support.client import Client, Response, event
from tests.support.contract import assert_matches_contract
from tests.support.module_database import database_url
from tests.support.paths import ROOT
from tests.support.plaintext import PLAINTEXT
from tests.support.read_model import Entitlement, clear_tables, entitlement, payloads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows
    from tests.support.servers import Databases

__all__ = ["database_url"]

SUMMARY = "/v1/users/{user_id}/summary"


def send(runtime: SummaryRuntime, user_id: str = "u_123", method: str = "GET", **parts: Any) -> Response:
    """Return the function's response, checked against the API document."""
    request = event(method, SUMMARY, pathParameters={"user_id": user_id}, **parts)
    result = handler.with_runtime(runtime)(request, None)
    response = Response(result["statusCode"], result["headers"], result["body"])
    assert_matches_contract(method, SUMMARY, response.status, response.headers, response.body)
    return response


@contextmanager
def open_runtime(database_url: str) -> Iterator[SummaryRuntime]:
    """Open the function's runtime, and close its database afterwards."""
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    yield SummaryRuntime(Summaries(database, "0 seconds"))
    database.close()


@pytest.fixture
def runtime(database_url: str, rows: Rows) -> Iterator[SummaryRuntime]:
    """The function's runtime, with an empty read model."""
    clear_tables(rows)
    with open_runtime(database_url) as runtime:
        yield runtime


@pytest.fixture
def unconnected() -> SummaryRuntime:
    """A runtime without a database: an invalid request must be refused without one."""
    runtime = SummaryRuntime.build({**PLAINTEXT, "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"})
    return replace(runtime, limiter=None)


def project_events(database_url: str, *entitlements: Entitlement) -> None:
    """Project the events of these entitlements."""
    with psycopg.connect(database_url) as tx:
        project(tx, payloads(entitlements))


def test_summary_has_counts_active_entitlements_and_last_change(runtime: SummaryRuntime, database_url: str) -> None:
    """P1: exactly these fields in this order, sorted by code point, and only those of the user."""
    project_events(
        database_url, *(entitlement("u_123", 1, sku) for sku in ("b", "é", "B", 'a"\\')), entitlement("u_123", 4, "a")
    )
    project_events(database_url, entitlement("u_12", 9), entitlement("u_1234", 9))
    response = send(runtime)
    assert response.status == 200
    assert response.body == (
        '{"user_id":"u_123","active":4,"revoked":1,"active_rights":["B","a\\"\\\\","b","é"],"last_change":'
        '{"stock_keeping_unit":"a","status":"REVOKED","version":4,"changed_at":"2026-01-08T07:10:04.000000Z"}}'
    )


def test_unknown_user_has_empty_summary(runtime: SummaryRuntime) -> None:
    """P1: an unknown user is not an error."""
    response = send(runtime, "nobody/ü")
    assert response.body == '{"user_id":"nobody/ü","active":0,"revoked":0,"active_rights":[],"last_change":null}'


def test_user_with_only_revoked_entitlements_has_last_change(runtime: SummaryRuntime, database_url: str) -> None:
    """P1: with counts of both statuses."""
    project_events(database_url, entitlement("u_123", 2, "a"), entitlement("u_123", 4, "b"))
    summary = send(runtime).json
    assert (summary["active"], summary["revoked"], summary["active_rights"]) == (0, 2, [])
    assert summary["last_change"]["stock_keeping_unit"] == "b"


def test_last_change_is_deterministic_for_equal_times(runtime: SummaryRuntime, database_url: str) -> None:
    """P1: the higher version and then the name decide, so that the response does not vary."""
    simultaneous = [
        entitlement("u_123", version, sku)._replace(time=entitlement("u", 1).time)
        for sku, version in (("c", 3), ("b", 3), ("a", 1))
    ]
    project_events(database_url, *simultaneous)
    assert {send(runtime).json["last_change"]["stock_keeping_unit"] for _ in range(3)} == {"b"}


def test_list_is_paged_and_counts_are_complete(runtime: SummaryRuntime, rows: Rows) -> None:
    """G6, E4: pages of at most a thousand; the counts and the last change are the same on every page."""
    rows.execute("""
        INSERT INTO user_entitlements
        SELECT 'u_123', 'sku-' || lpad(n::text, 4, '0'), CASE WHEN n % 10 = 0 THEN 'REVOKED' ELSE 'ACTIVE' END, 1, now()
          FROM generate_series(1, 2000) n""")
    first = send(runtime).json
    second = send(runtime, queryStringParameters={"after": first.pop("next_after")}).json
    assert "next_after" not in second
    assert first.pop("active_rights") + second.pop("active_rights") == [
        f"sku-{number:04}" for number in range(1, 2001) if number % 10
    ]
    assert first == second
    assert (first["active"], first["revoked"]) == (1800, 200)


@pytest.mark.parametrize(("limit", "next_after"), [("1", "a"), ("2", "b"), ("3", None), ("4", None)])
def test_limit_of_the_page(runtime: SummaryRuntime, database_url: str, limit: str, next_after: str | None) -> None:
    """G6, E4: next_after is present only if there are more active entitlements; a revoked one is none."""
    project_events(database_url, *(entitlement("u_123", 1, sku) for sku in "abc"), entitlement("u_123", 2, "d"))
    summary = send(runtime, queryStringParameters={"limit": limit}).json
    assert summary["active_rights"] == list("abc")[: int(limit)]
    assert summary.get("next_after") == next_after


def test_summary_follows_events_not_system_of_record(
    runtime: SummaryRuntime, client: Client, database_url: str
) -> None:
    """P1: eventually consistent, as the API document says; the other route is exact."""
    granted = client.grant("k1").json
    assert send(runtime).json["active"] == 0
    assert len(client.list_entitlements().json["entitlements"]) == 1
    project_events(database_url, entitlement("u_123", 1))
    assert send(runtime).json["active_rights"] == [granted["stock_keeping_unit"]]


@pytest.mark.parametrize("user_id", ["", " ", "u" * 129, "a\x00b", "a\x85", "%ED%A0%80"])
def test_invalid_user_id_is_refused(unconnected: SummaryRuntime, user_id: str) -> None:
    """E5: with the same rules as in every other request."""
    assert send(unconnected, user_id).code == "BAD_REQUEST"


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "1001"}, {"after": ""}, {"after": " x"}, {"": ""}, {"\ud800" * 200: "1"}]
)
def test_invalid_query_parameters_are_refused(unconnected: SummaryRuntime, query: dict[str, str]) -> None:
    """E5: with the same rules as the list of entitlements; a misspelt one must not be ignored."""
    assert send(unconnected, queryStringParameters=query).code == "BAD_REQUEST"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_other_method_is_refused(unconnected: SummaryRuntime, method: str) -> None:
    """E5: the Allow header names the allowed one."""
    response = send(unconnected, method=method)
    assert (response.status, response.headers["Allow"]) == (405, "GET")


def test_other_path_is_not_found(unconnected: SummaryRuntime) -> None:
    """E5: an event of another resource."""
    response = handler.with_runtime(unconnected)(event("GET", "/v1/users/{user_id}/summaries"), None)
    assert response["statusCode"] == 404


def test_database_outage_is_503_and_function_recovers(server: PostgresServer) -> None:
    """E5: with Retry-After while PostgreSQL is stopped; the same runtime responds normally afterwards."""
    with open_runtime(server.url()) as runtime:
        assert send(runtime).status == 200
        server.stop()
        try:
            response = send(runtime)
        finally:
            server.start()
        assert (response.status, response.code) == (503, "UNAVAILABLE")
        assert int(response.headers["Retry-After"]) >= 1
        assert send(runtime).status == 200


@pytest.fixture
def unused(databases: Databases) -> Iterator[Rows]:
    """A database of its own: the statistics of earlier rows would change the plans."""
    url = databases.migrated()
    with psycopg.connect(databases.url_for_owner(url), autocommit=True, row_factory=dict_row) as rows:
        yield rows
    databases.drop(url)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("planned_empty", [False, True])
def test_cost_of_summary_does_not_depend_on_number_of_entitlements(
    unused: Rows, mode: str, planned_empty: bool
) -> None:
    """G6, K3: it touches as many pages of memory for 20,000 entitlements, active, revoked or with times, as for 10.

    Also with a plan that was made while the tables were empty.
    """
    unused.execute(f"SET plan_cache_mode = {mode}")
    statement = SUMMARIZE % {"user_id": "$1", "after": "$2", "limit": "$3", "grace": "$4", "now": "$5"}
    unused.execute(f"PREPARE summary (text, text, integer, interval, timestamptz) AS {statement}")
    if planned_empty:
        unused.execute("EXECUTE summary ('u', '', 10, '1 hour', NULL)")
    unused.execute("ALTER TABLE user_entitlements SET (autovacuum_enabled = false)")
    # The entitlements of `timed` have started and have not ended.
    for user, status, count, time in (
        ("few", "ACTIVE", 10, None),
        ("many", "ACTIVE", 20_000, None),
        ("former", "REVOKED", 20_000, None),
        ("timed", "ACTIVE", 20_000, "1 day"),
    ):
        unused.execute(
            "INSERT INTO user_entitlements"
            " SELECT %s, lpad(n::text, 5, '0'), %s, 1, now(), now() - %s::interval, now() + %s::interval"
            " FROM generate_series(1, %s) n",
            (user, status, time, time, count),
        )
    if not planned_empty:
        unused.execute("ANALYZE user_entitlements, user_summaries")
    buffers = {user: count_buffers(unused, user) for user in ("few", "many", "former", "timed")}
    assert max(buffers.values()) <= buffers["few"] + 10, buffers


def count_buffers(rows: Rows, user_id: str) -> int:
    """Return how many pages the summary of a user touches."""
    summarize = f"EXECUTE summary ('{user_id}', '', 10, '1 hour', NULL)"
    rows.execute(summarize)  # the first run may set hint bits and read catalogs
    (line,) = rows.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {summarize}")
    plan = line["QUERY PLAN"][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_event_file_asks_for_user_of_other_event_files(runtime: SummaryRuntime, database_url: str) -> None:
    """S2: `sam local invoke` shows the entitlement that the grant's event file creates."""
    project_events(database_url, entitlement("u_123", 1))
    response = handler.with_runtime(runtime)(json.loads((ROOT / "infra/events/show_summary.json").read_text()), None)
    granted = json.loads(json.loads((ROOT / "infra/events/grant.json").read_text())["body"])
    assert json.loads(response["body"])["active_rights"] == [granted["stock_keeping_unit"]]
