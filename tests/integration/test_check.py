"""K1, K3, K5: checking one entitlement, at every boundary of time, and caching the result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from functions.check_entitlement.handler import handler
from tests.support.checks import CHECK, CheckClient, write_entitlement
from tests.support.client import Client
from tests.support.module_database import database_url
from tests.support.paths import ROOT
from tests.support.round_trips import RoundTrips
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows

__all__ = ["database_url"]

KEYS = [
    *("user_id", "stock_keeping_unit", "allowed", "status", "reason", "version", "starts_at", "expires_at"),
    *("updated_at", "checked_at", "cache_until"),
]
_DESCRIBE = """
SELECT body::json AS body, etag, max_age FROM entitlement_check(
    'u', 's', jsonb_populate_record(NULL::entitlements, jsonb_build_object(
        'status', %(status)s::text, 'version', 1, 'starts_at', %(starts_at)s::timestamptz,
        'expires_at', %(expires_at)s::timestamptz, 'updated_at', %(updated_at)s::timestamptz)),
    %(grace)s::interval, %(cache)s::interval, %(now)s::timestamptz)
"""
GRANTED = "2026-02-01T00:00:00.000000Z"
START = "2026-03-01T00:00:00.000000Z"
END = "2026-04-01T00:00:00.000000Z"
BEFORE_START, AFTER_START = "2026-02-28T23:59:59.999999Z", "2026-03-01T00:00:00.000001Z"
BEFORE_END, AFTER_END = "2026-03-31T23:59:59.999999Z", "2026-04-01T00:00:00.000001Z"
GRACE_END = "2026-04-01T01:00:00.000000Z"
BEFORE_GRACE_END = "2026-04-01T00:59:59.999999Z"


@pytest.fixture
def client(database_url: str, rows: Rows) -> Iterator[CheckClient]:
    """A caller, with no entitlements."""
    rows.execute("TRUNCATE entitlements")
    with CheckClient(database_url) as client:
        yield client


@pytest.fixture(scope="module")
def functions_role(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection with the role of the functions."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def describe(functions_role: psycopg.Connection[Any], now: str, **values: Any) -> tuple[dict[str, Any], str, int]:
    """Return the body, the ETag and max-age of a check at the time `now`."""
    defaults = {"status": "ACTIVE", "starts_at": None, "expires_at": None, "updated_at": GRANTED}
    parameters = defaults | {"grace": "0s", "cache": "60s", "now": now} | values
    row = functions_role.execute(_DESCRIBE, parameters).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


@pytest.mark.parametrize(
    ("now", "values", "status", "code", "message"),
    [
        (BEFORE_START, {"starts_at": START, "expires_at": END}, "SCHEDULED", "SCHEDULED", f"starts at {START}"),
        (START, {"starts_at": START, "expires_at": END}, "ACTIVE", "ACTIVE", f"active until {END}"),
        (AFTER_START, {"starts_at": START}, "ACTIVE", "ACTIVE", "active without an end"),
        (BEFORE_END, {"expires_at": END}, "ACTIVE", "ACTIVE", f"active until {END}"),
        (END, {"expires_at": END}, "EXPIRED", "EXPIRED", f"ended at {END}"),
        (AFTER_END, {"expires_at": END}, "EXPIRED", "EXPIRED", f"ended at {END}"),
        (BEFORE_END, {"expires_at": END, "grace": "1h"}, "ACTIVE", "ACTIVE", f"active until {END}"),
        (END, {"expires_at": END, "grace": "1h"}, "ACTIVE", "GRACE", f"ended at {END}, grace until {GRACE_END}"),
        (
            BEFORE_GRACE_END,
            {"expires_at": END, "grace": "1h"},
            "ACTIVE",
            "GRACE",
            f"ended at {END}, grace until {GRACE_END}",
        ),
        (GRACE_END, {"expires_at": END, "grace": "1h"}, "EXPIRED", "EXPIRED", f"ended at {GRACE_END}"),
        # A recorded end is not moved by a grace that became longer.
        (
            AFTER_END,
            {"status": "EXPIRED", "expires_at": END, "updated_at": AFTER_END, "grace": "1h"},
            "EXPIRED",
            "EXPIRED",
            f"ended at {AFTER_END}",
        ),
        (
            GRACE_END,
            {"status": "EXPIRED", "expires_at": END, "updated_at": GRACE_END},
            "EXPIRED",
            "EXPIRED",
            f"ended at {END}",
        ),
        # A revocation counts before its times.
        (
            BEFORE_START,
            {"status": "REVOKED", "starts_at": START, "expires_at": END},
            "REVOKED",
            "REVOKED",
            f"revoked at {GRANTED}",
        ),
        (AFTER_END, {"status": "REVOKED", "expires_at": END}, "REVOKED", "REVOKED", f"revoked at {GRANTED}"),
        (END, {}, "ACTIVE", "ACTIVE", "active without an end"),
        (END, {"status": None, "updated_at": None}, "NONE", "NOT_GRANTED", "not granted"),
    ],
)
def test_status_and_reason_at_each_boundary_of_time(
    functions_role: psycopg.Connection[Any], now: str, values: dict[str, Any], status: str, code: str, message: str
) -> None:
    """K1, K3, K5: a start, an end and the end of the grace count from their exact microsecond."""
    body, _, _ = describe(functions_role, now, **values)
    assert (body["status"], body["reason"]) == (status, {"code": code, "message": message})
    assert body["allowed"] == (status == "ACTIVE")
    assert body["checked_at"] == now


@pytest.mark.parametrize(
    ("now", "values", "cache_until", "max_age"),
    [
        # Nothing is known to change: the setting.
        (START, {}, "2026-03-01T00:01:00.000000Z", 60),
        (START, {"status": None}, "2026-03-01T00:01:00.000000Z", 60),
        (START, {"status": "REVOKED", "expires_at": END}, "2026-03-01T00:01:00.000000Z", 60),
        (AFTER_END, {"expires_at": END}, "2026-04-01T00:01:00.000001Z", 60),
        (START, {"cache": "0s"}, START, 0),
        (START, {"cache": "1h", "expires_at": END}, "2026-03-01T01:00:00.000000Z", 3600),
        # The start, if it is earlier.
        ("2026-02-28T23:58:59.999999Z", {"starts_at": START}, "2026-02-28T23:59:59.999999Z", 60),
        ("2026-02-28T23:59:00.000001Z", {"starts_at": START}, START, 59),
        (BEFORE_START, {"starts_at": START}, START, 0),
        (START, {"starts_at": START}, "2026-03-01T00:01:00.000000Z", 60),
        # The end, if it is earlier.
        ("2026-03-31T23:59:00.000000Z", {"expires_at": END}, END, 60),
        ("2026-03-31T23:59:00.500000Z", {"expires_at": END}, END, 59),
        (BEFORE_END, {"expires_at": END}, END, 0),
        # The end includes the grace, before it and in it.
        (BEFORE_END, {"expires_at": END, "grace": "10s"}, "2026-04-01T00:00:10.000000Z", 10),
        ("2026-04-01T00:00:04.000000Z", {"expires_at": END, "grace": "10s"}, "2026-04-01T00:00:10.000000Z", 6),
    ],
)
def test_result_may_be_cached_until_the_next_known_change(
    functions_role: psycopg.Connection[Any], now: str, values: dict[str, Any], cache_until: str, max_age: int
) -> None:
    """K1: at most for the setting, never past a start or an end, in whole seconds rounded down."""
    body, _, seconds = describe(functions_role, now, **values)
    assert (body["cache_until"], seconds) == (cache_until, max_age)


def test_etag_covers_everything_but_the_times_of_the_check(functions_role: psycopg.Connection[Any]) -> None:
    """K1: it is equal until the state or the reason changes."""
    values = {"starts_at": START, "expires_at": END, "grace": "1h"}
    etags = [describe(functions_role, now, **values)[1] for now in (START, AFTER_START, BEFORE_END)]
    assert len(set(etags)) == 1
    others = [
        describe(functions_role, BEFORE_START, **values)[1],
        describe(functions_role, END, **values)[1],  # grace has begun
        describe(functions_role, GRACE_END, **values)[1],
        describe(functions_role, START, **values, updated_at=END)[1],
        describe(functions_role, START, starts_at=START)[1],
        describe(functions_role, START, expires_at=END)[1],
        describe(functions_role, START, **values, status="REVOKED")[1],
    ]
    assert len({etags[0], *others}) == 8
    assert describe(functions_role, START, **values, cache="1s")[1] == etags[0]


def test_check_of_a_granted_item(client: CheckClient, rows: Rows) -> None:
    """K1: all keys in their order, with the values of the row."""
    write_entitlement(rows, version=7, updated_at=START)
    response = client.check()
    checked = response.json
    assert list(checked) == KEYS
    assert response.body.startswith(
        '{"user_id":"u_123","stock_keeping_unit":"item1","allowed":true,"status":"ACTIVE",'
        '"reason":{"code":"ACTIVE","message":"active without an end"},"version":7,"starts_at":null,"expires_at":null,'
        f'"updated_at":"{START}","checked_at":"'
    )
    assert response.headers["Cache-Control"] == "private, max-age=60"


@pytest.mark.parametrize(("user_id", "sku"), [("unknown", "item1"), ("u_123", "item2"), ("u_12", "3item1")])
def test_check_of_an_unknown_name_is_an_answer(client: CheckClient, rows: Rows, user_id: str, sku: str) -> None:
    """K1: 200 with status NONE and null where there is no value."""
    write_entitlement(rows)
    response = client.check(user_id, sku)
    assert response.status == 200
    assert response.body.startswith(
        f'{{"user_id":"{user_id}","stock_keeping_unit":"{sku}","allowed":false,"status":"NONE",'
        '"reason":{"code":"NOT_GRANTED","message":"not granted"},"version":null,"starts_at":null,"expires_at":null,'
        '"updated_at":null,"checked_at":"'
    )


@pytest.mark.parametrize(
    ("times", "status"),
    [
        ({"expires_at": "2001-01-01T00:00:00Z"}, "EXPIRED"),
        ({"starts_at": "2999-01-01T00:00:00Z"}, "SCHEDULED"),
        ({"starts_at": "2001-01-01T00:00:00Z", "expires_at": "2999-01-01T00:00:00Z"}, "ACTIVE"),
    ],
)
def test_clock_of_the_database_decides_without_a_worker(
    client: CheckClient, rows: Rows, times: dict[str, str], status: str
) -> None:
    """K3: the stored status is ACTIVE in all cases."""
    write_entitlement(rows, **times)
    assert client.check().json["status"] == status


def test_settings_reach_the_database(database_url: str, rows: Rows) -> None:
    """K5: ENTITLEMENT_GRACE and ENTITLEMENT_CHECK_CACHE; an entitlement that ended a minute ago is in its grace."""
    rows.execute("TRUNCATE entitlements")
    rows.execute("""
        INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at, expires_at)
        VALUES ('u_123', 'item1', 'ACTIVE', 1, now(), now() - interval '1 minute')""")
    with CheckClient(database_url, ENTITLEMENT_GRACE="2h", ENTITLEMENT_CHECK_CACHE="30m") as client:
        response = client.check()
        assert (response.json["allowed"], response.json["reason"]["code"]) == (True, "GRACE")
        assert response.headers["Cache-Control"] == "private, max-age=1800"
    with CheckClient(database_url, ENTITLEMENT_CHECK_CACHE="0s") as client:
        response = client.check()
        assert (response.json["allowed"], response.headers["Cache-Control"]) == (False, "private, max-age=0")
        assert response.json["cache_until"] == response.json["checked_at"]


@pytest.mark.parametrize("name", ["a b", "ü@x", "50%", "a/b", "a%2Fb", "%25", 'quote"s\\', "..", "🎁" * 128])
def test_names_with_special_characters_are_found(client: CheckClient, rows: Rows, name: str) -> None:
    """G8: user and item are percent-decoded exactly once."""
    write_entitlement(rows, user_id=name, sku=f"x{name}"[:128])
    checked = client.check(name, f"x{name}"[:128]).json
    assert (checked["user_id"], checked["stock_keeping_unit"]) == (name, f"x{name}"[:128])
    assert checked["allowed"]


@newest_postgres
@pytest.mark.parametrize(
    "if_none_match",
    ["{etag}", "W/{etag}", '"other", {etag}', '{etag},"other"', 'W/"x" , W/{etag}', "*", " * ", 'x {etag}, "unclosed'],
)
def test_same_result_is_not_sent_again(client: CheckClient, rows: Rows, if_none_match: str) -> None:
    """K1: 304 without a body, with the ETag and a new time to cache."""
    write_entitlement(rows)
    etag = client.check().headers["ETag"]
    response = client.check(headers={"If-None-Match": if_none_match.format(etag=etag)})
    assert (response.status, response.body) == (304, "")
    assert response.headers == {"ETag": etag, "Cache-Control": "private, max-age=60"}


@newest_postgres
@pytest.mark.parametrize(
    "if_none_match",
    ["", '""', "{bare}", '"{bare}x"', '"x{bare}"', "'{bare}'", '"*"', '*, "x"', 'W/"W/{bare}"', '"\x00"', "\udcff"],
)
def test_other_etag_gets_the_result(client: CheckClient, rows: Rows, if_none_match: str) -> None:
    """K1: an ETag that is different or malformed has no effect."""
    write_entitlement(rows)
    bare = client.check().headers["ETag"].strip('"')
    response = client.check(headers={"If-None-Match": if_none_match.format(bare=bare)})
    assert (response.status, response.json["allowed"]) == (200, True)


def test_etag_in_a_repeated_header_is_found(client: CheckClient, rows: Rows) -> None:
    """K1: API Gateway passes each value separately, with the caller's case of the name."""
    write_entitlement(rows)
    names = {"user_id": "u_123", "stock_keeping_unit": "item1"}
    values = ['"other"', client.check().headers["ETag"]]
    sent = {"pathParameters": names, "multiValueHeaders": {"IF-NONE-MATCH": values}}
    assert client.send("GET", CHECK, **sent).status == 304


def test_change_makes_the_etag_invalid(client: CheckClient, rows: Rows) -> None:
    """K1: a revocation is sent to a caller that has the earlier result."""
    write_entitlement(rows)
    etag = client.check().headers["ETag"]
    write_entitlement(rows, status="REVOKED", version=2)
    response = client.check(headers={"If-None-Match": etag})
    assert (response.status, response.json["status"]) == (200, "REVOKED")
    assert response.headers["ETag"] != etag


@pytest.mark.parametrize(
    ("times", "next_status"),
    [({"starts_at": START}, "ACTIVE"), ({"expires_at": END}, "EXPIRED"), ({"starts_at": START, "expires_at": END}, "")],
)
def test_cached_result_never_contradicts_a_known_change(
    functions_role: psycopg.Connection[Any], times: dict[str, str], next_status: str
) -> None:
    """K1: for checks at many moments around the times, `allowed` is the same until just before cache_until."""
    moments = functions_role.execute("""
        SELECT rfc3339(t + n * interval '17 seconds') FROM generate_series(-12, 12) n,
               (VALUES (timestamptz '2026-03-01Z'), ('2026-04-01Z')) AS boundary (t)""").fetchall()
    seen = set()
    for (moment,) in moments:
        body, _, _ = describe(functions_role, moment, **times, grace="30s")
        last = functions_role.execute(
            "SELECT rfc3339(%s::timestamptz - interval '1 microsecond')", (body["cache_until"],)
        ).fetchone()
        assert last is not None
        later, _, _ = describe(functions_role, max(moment, last[0]), **times, grace="30s")
        assert later["allowed"] == body["allowed"], moment
        seen.add(body["status"])
    assert next_status in seen or len(seen) == 3


def test_check_sees_a_grant_and_a_revocation_at_once(database_url: str, client: CheckClient) -> None:
    """K1: it reads the system of record, not the read model."""
    with Client(database_url) as writer:
        granted = writer.grant("check-1").json
        checked = client.check().json
        assert (checked["version"], checked["updated_at"]) == (granted["version"], granted["updated_at"])
        revoked = writer.revoke("check-2").json
        assert client.check().json["reason"] == {"code": "REVOKED", "message": f"revoked at {revoked['updated_at']}"}


def test_check_takes_one_round_trip(database_url: str, rows: Rows) -> None:
    """K1: one statement, also if the caller has the result already."""
    write_entitlement(rows)
    with RoundTrips(database_url) as proxy, CheckClient(proxy.url) as client:
        etag = client.check().headers["ETag"]
        client.check()
        before = proxy.count
        client.check()
        assert proxy.since(before) == 1
        client.check(headers={"If-None-Match": etag})
        assert proxy.since(before) == 2


def test_database_outage_is_503_and_function_recovers(server: PostgresServer) -> None:
    """E5: with Retry-After while PostgreSQL is stopped; the same runtime responds normally afterwards."""
    with CheckClient(server.url()) as client:
        assert client.check().status == 200
        server.stop()
        try:
            responses = [client.check(), client.check_many(("u", "s")), client.history()]
        finally:
            server.start()
        assert [(response.status, response.code) for response in responses] == [(503, "UNAVAILABLE")] * 3
        assert client.check().status == 200


def test_event_file_asks_for_the_item_of_the_other_event_files(client: CheckClient, rows: Rows) -> None:
    """S2: `sam local invoke` checks the entitlement that the grant's event file creates."""
    granted = json.loads(json.loads((ROOT / "infra/events/grant.json").read_text())["body"])
    write_entitlement(rows, user_id=granted["user_id"], sku=granted["stock_keeping_unit"])
    event = json.loads((ROOT / "infra/events/check_entitlement.json").read_text())
    response = handler.with_runtime(client.runtime)(event, None)
    assert json.loads(response["body"])["allowed"]
