"""O8, I1, E4, G1: the indexes that frequent statements read, among many unrelated rows.

The plans of other statements are checked in the tests of those statements: a claim among parked events
(test_outbox_claim), the batches of the sweep (test_retention_sweep), the inbox, the summary, deliveries and the message
store. EXPLAIN does not show the statements inside a SQL function, so those tests use the scan counts of PostgreSQL.
"""

from __future__ import annotations

import uuid
from collections import Counter
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.rows import tuple_row

from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements.store import CHANGE, LIST
from grantwire.outbox import store
from grantwire.outbox.store import CLAIM
from grantwire.retention.checks import SELECT_DIFFERENCES
from grantwire.runtime.relay import SESSION
from grantwire.settings import load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import LiteralString

    import psycopg

    from tests.integration.conftest import Rows

ROW_COUNT = 20_000

_INSERT_PUBLISHED = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready, published_at)
SELECT gen_random_uuid(), 'EntitlementGranted', 'u' || n, 1, '{}', 'PUBLISHED', false, now()
  FROM generate_series(1, %s) n
"""
# Each FAILED head has 99 events behind it.
_INSERT_PARKED = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready, created_at)
SELECT gen_random_uuid(), 'EntitlementGranted', 'parked' || n / 100, n %% 100 + 1, '{}',
       CASE n %% 100 WHEN 0 THEN 'FAILED' ELSE 'PENDING' END, false, now() - interval '1 day'
  FROM generate_series(0, %s - 1) n
"""
# Each aggregate has a head and two events behind it.
_INSERT_OPEN = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, ready)
SELECT gen_random_uuid(), 'EntitlementGranted', 'open' || n / 3, n %% 3 + 1, '{}', n %% 3 = 0
  FROM generate_series(0, %s - 1) n
"""
_INSERT_KEYS = """
INSERT INTO idempotency_keys
SELECT 'local', 'route', 'k' || n, 'v1:0', 200, '{}', now(), now() + interval '1 day' FROM generate_series(1, %s) n
"""
_INSERT_ENTITLEMENTS = """
INSERT INTO entitlements SELECT 'u' || n %% 100, 's' || n, 'ACTIVE', 1, now() FROM generate_series(1, %s) n
"""
_INSERT_AUDIT = """
INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail, version,
                               status, occurred_at)
SELECT gen_random_uuid(), 'c', 'GRANT', 'APPLIED', 'u' || n, 'item1', '{}', 1, 'ACTIVE', %(day)s::timestamptz
  FROM generate_series(1, %(count)s) n
"""
_SELECT_AUDITED = """
SELECT operation_id, user_id, stock_keeping_unit, 'EntitlementGranted' AS event_type, version, occurred_at,
       ''::bytea AS digest
  FROM entitlement_audit WHERE occurred_at = %(day)s::timestamptz LIMIT 200
"""
_FIND_GENUINE = """
SELECT genuine_events(%s::uuid[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::timestamptz[], %s::bytea[])
       AS positions
"""
_SELECT_SCAN_COUNTS = """
SELECT relation::text AS name, pg_stat_get_xact_numscans(relation) AS scans
  FROM (SELECT indexrelid::regclass FROM pg_index WHERE indrelid = ANY (%(tables)s::regclass[])
         UNION ALL SELECT unnest(%(tables)s::regclass[])) AS r (relation)
"""


@pytest.fixture(params=["force_custom_plan", "force_generic_plan"])
def planned(rows: Rows, request: pytest.FixtureRequest) -> Rows:
    """A connection that uses custom plans, and one that uses generic plans."""
    rows.execute(f"SET plan_cache_mode = {request.param}")
    return rows


@pytest.mark.parametrize("backlog", [_INSERT_PUBLISHED, _INSERT_PARKED], ids=["published", "parked"])
def test_claim_reads_only_indexes(planned: Rows, backlog: str) -> None:
    """O2, O8: however many published or parked events there are."""
    planned.execute(backlog, (ROW_COUNT,))
    planned.execute(_INSERT_OPEN, (300,))
    planned.execute("ANALYZE outbox_events")
    statement = CLAIM % {"token": "$1", "limit": "$2", "lease": "$3", "now": "$4"}
    planned.execute(f"PREPARE claim (text, integer, interval, timestamptz) AS {statement}")
    scans = list(_scans(planned, "EXECUTE claim ('x', 200, '30 seconds', NULL)"))
    assert [scan["Index Name"] for scan in scans] == ["outbox_events_ready", "outbox_events_open", "outbox_events_pkey"]
    assert {scan["Node Type"] for scan in scans[:2]} == {"Index Scan"}


def test_page_of_entitlements_reads_the_primary_key_in_order(planned: Rows) -> None:
    """E4: the cost of a page does not depend on how many entitlements the user has."""
    planned.execute(_INSERT_ENTITLEMENTS, (ROW_COUNT,))
    planned.execute("ANALYZE entitlements")
    statement = LIST.replace("%(user_id)s", "$1").replace("%(after)s", "$2").replace("%(limit)s", "$3")
    planned.execute(f"PREPARE page (text, text, bigint) AS {statement}")
    (scan,) = _scans(planned, "EXECUTE page ('u7', 's5', 10)")
    assert (scan["Node Type"], scan["Index Name"]) == ("Index Scan", "entitlements_pkey")


def test_replay_is_one_lookup_by_primary_key(planned: Rows) -> None:
    """I1: no other index or table is read."""
    planned.execute(_INSERT_KEYS, (ROW_COUNT,))
    planned.execute("ANALYZE idempotency_keys")
    with _record_scans(planned, "idempotency_keys", "entitlements", "outbox_events") as scanned:
        assert _change(planned, "k7") == "REPLAYED"
    assert scanned == {"idempotency_keys_pkey": 1}


def test_grant_reads_only_indexes(planned: Rows) -> None:
    """E6: the key, the entitlement and the previous event are found by index, however full the tables are."""
    for fill, table in (
        (_INSERT_KEYS, "idempotency_keys"),
        (_INSERT_ENTITLEMENTS, "entitlements"),
        (_INSERT_PUBLISHED, "outbox_events"),
    ):
        planned.execute(fill, (ROW_COUNT,))
        planned.execute(f"ANALYZE {table}")
    with _record_scans(planned, "idempotency_keys", "entitlements", "outbox_events") as scanned:
        assert _change(planned, "new") == "APPLIED"
    assert scanned.keys() == {"idempotency_keys_pkey", "entitlements_pkey", "outbox_events_open"}


@pytest.mark.parametrize("backlog", [_INSERT_PUBLISHED, _INSERT_PARKED], ids=["published", "parked"])
def test_finalise_reads_only_indexes(planned: Rows, backlog: str) -> None:
    """O2, O8: it reads the events by their ids, and the open events of their aggregates."""
    planned.execute(backlog, (ROW_COUNT,))
    planned.execute(_INSERT_OPEN, (300,))
    planned.execute("ANALYZE outbox_events")
    parameters = {"token": "x", "limit": 100, "lease": timedelta(seconds=30), "now": None}
    claimed = [row["event_id"] for row in planned.execute(CLAIM, parameters).fetchall()]
    with _record_scans(planned, "outbox_events") as scanned:
        planned.execute("SELECT outbox_finalise('x', %s)", (claimed,))
    assert scanned.keys() == {"outbox_events_pkey", "outbox_events_open"}
    left = planned.execute("SELECT count(*) AS n FROM outbox_events WHERE ready").fetchone()
    assert left == {"n": 100}


def test_enqueue_planned_on_an_empty_table_still_reads_the_index(rows: Rows) -> None:
    """O1: a connection keeps its plans until the table is analysed, many thousand events later."""
    for number in range(10):
        _enqueue(rows, f"first{number}")
    rows.execute(_INSERT_PUBLISHED, (ROW_COUNT,))
    with _record_scans(rows, "outbox_events") as scanned:
        _enqueue(rows, "next")
    assert scanned == {"outbox_events_open": 1}


def test_claim_planned_on_an_empty_table_still_reads_the_indexes(environ: dict[str, str], rows: Rows) -> None:
    """O2: on the relay's own connection, which lives as long as its execution environment."""
    lease = timedelta(seconds=30)
    database = Database(load(DatabaseSettings, environ), session=SESSION)
    with closing(database), database.session() as tx:
        for _ in range(10):
            assert store.claim(tx, "x", limit=200, lease=lease) == []
        rows.execute(_INSERT_PUBLISHED, (ROW_COUNT,))
        rows.execute(_INSERT_OPEN, (300,))
        with _record_scans(tx, "outbox_events") as scanned:
            assert len(store.claim(tx, "x", limit=200, lease=lease)) == 200
    assert scanned.keys() == {"outbox_events_ready", "outbox_events_open", "outbox_events_pkey"}


def test_genuine_events_read_one_partition_by_primary_key(planned: Rows) -> None:
    """G1: a batch reads the partition of its events only; events that are not found read each partition by index."""
    partitions = _fill_audit(planned)
    planned.execute("ANALYZE entitlement_audit")
    events = planned.execute(_SELECT_AUDITED, {"day": "2031-02-15"}).fetchall()
    with _record_scans(planned, *partitions) as scanned:
        assert len(_find_genuine(planned, events)) == 200
    assert scanned == {"entitlement_audit_y2031m02_pkey": 200}
    for event in events:
        event["user_id"] = "forged"
    with _record_scans(planned, *partitions) as scanned:
        assert _find_genuine(planned, events) == []
    assert not scanned.keys() & set(partitions)
    assert scanned["entitlement_audit_y2031m01_pkey"] == 200


def test_genuine_events_planned_on_empty_partitions_still_read_the_index(rows: Rows) -> None:
    """G1: a bridge keeps its plans for as long as its execution environment lives."""
    for _ in range(10):
        assert _find_genuine(rows, []) == []
    partitions = _fill_audit(rows)
    events = rows.execute(_SELECT_AUDITED, {"day": "2031-01-15"}).fetchall()
    with _record_scans(rows, *partitions) as scanned:
        assert len(_find_genuine(rows, events)) == 200
    assert scanned == {"entitlement_audit_y2031m01_pkey": 200}


def test_check_of_the_read_model_reads_one_page(planned: Rows) -> None:
    """G1: a page is a range of the primary key, and its entitlements are read by index, however many rows there are."""
    planned.execute(_INSERT_ENTITLEMENTS, (ROW_COUNT,))
    planned.execute(
        """INSERT INTO user_entitlements
           SELECT user_id, stock_keeping_unit, status, version, updated_at, starts_at, expires_at FROM entitlements"""
    )
    planned.execute("ANALYZE entitlements, user_entitlements")
    statement = SELECT_DIFFERENCES
    for number, name in enumerate(("user_id", "sku", "limit", "examples"), start=1):
        statement = statement.replace(f"%({name})s", f"${number}")
    planned.execute(f"PREPARE page (text, text, bigint, bigint) AS {statement}")
    scans = {scan["Index Name"] for scan in _scans(planned, "EXECUTE page ('u7', 's5', 100, 10)")}
    assert scans == {"user_entitlements_pkey", "entitlements_pkey"}


@pytest.mark.parametrize(
    ("ask", "index"),
    [
        ("SELECT trace_changes(NULL, NULL, %(u)s, NULL, NULL, NULL, 51) AS found", "purchase_id_occurred_at"),
        ("SELECT trace_changes(NULL, NULL, NULL, %(u)s, NULL, NULL, 51) AS found", "trace_id_occurred_at"),
        ("SELECT trace_changes(NULL, NULL, NULL, NULL, %(u)s, NULL, 51) AS found", "expr_occurred_at"),
    ],
    ids=["purchase", "trace id", "key"],
)
def test_trace_planned_on_empty_partitions_still_reads_its_index(rows: Rows, ask: LiteralString, index: str) -> None:
    """T2: no partition is read completely, whichever way a trace is asked for."""
    for _ in range(10):
        rows.execute(ask, {"u": "u7"})
    partitions = _fill_audit(rows)
    rows.execute(
        "UPDATE entitlement_audit"
        " SET purchase_id = user_id, trace_id = user_id, detail = jsonb_build_object('key_fingerprint', user_id)"
    )
    with _record_scans(rows, *partitions) as scanned:
        (row,) = rows.execute(ask, {"u": "u7"}).fetchall()
    assert len(row["found"]) == 3
    assert not scanned.keys() & set(partitions)
    assert {f"{partition}_{index}_idx" for partition in partitions} <= scanned.keys()


def _fill_audit(rows: Rows) -> list[str]:
    """Insert rows into three months of the audit, and return the names of their partitions."""
    rows.execute("SELECT entitlement_audit_ensure_partitions(2, '2031-01-15')")
    for month in (1, 2, 3):
        rows.execute(_INSERT_AUDIT, {"day": f"2031-0{month}-15", "count": ROW_COUNT // 4})
    return [f"entitlement_audit_y2031m0{month}" for month in (1, 2, 3)]


def _find_genuine(rows: Rows, events: Sequence[dict[str, Any]]) -> list[int]:
    names = ("operation_id", "user_id", "stock_keeping_unit", "event_type", "version", "occurred_at", "digest")
    columns = [[event[name] for event in events] for name in names]
    (row,) = rows.execute(_FIND_GENUINE, columns).fetchall()
    return list(row["positions"])


def _enqueue(rows: Rows, aggregate: str) -> None:
    rows.execute("SELECT outbox_enqueue(gen_random_uuid(), 'EntitlementGranted', %s, 1, '{}', NULL)", (aggregate,))


def _change(rows: Rows, key: str) -> str:
    parameters = {
        "caller": "local",
        "route": "route",
        "key": key,
        "request_hash": "v1:0",
        "ttl": timedelta(days=1),
        "lock_wait_ms": 2000,
        "status": "ACTIVE",
        "user_id": "new",
        "stock_keeping_unit": "item",
        "reason": "purchase",
        "purchase_id": "p",
        "operation_id": uuid.uuid4(),
        "trace_id": "1-0-0",
        "source_address": "192.0.2.1",
    }
    row = rows.cursor(row_factory=tuple_row).execute(CHANGE, parameters).fetchone()
    assert row is not None
    return str(row[0])


@contextmanager
def _record_scans(rows: psycopg.Connection[Any], *tables: str) -> Iterator[Counter[str]]:
    """Count the scans of each index of these tables, and of the tables themselves, in one transaction."""
    scanned: Counter[str] = Counter()
    with rows.transaction():
        before = _scan_counts(rows, tables)
        yield scanned
        scanned += _scan_counts(rows, tables) - before


def _scan_counts(rows: psycopg.Connection[Any], tables: Sequence[str]) -> Counter[str]:
    """Return the scan counts of this session, which can include earlier transactions."""
    cursor = rows.cursor(row_factory=tuple_row)
    return Counter(dict(cursor.execute(_SELECT_SCAN_COUNTS, {"tables": list(tables)}).fetchall()))


def _scans(rows: Rows, statement: str) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a plan that scan an index or a whole table."""
    (row,) = rows.execute(f"EXPLAIN (FORMAT JSON) {statement}").fetchall()
    nodes = [row["QUERY PLAN"][0]["Plan"]]
    while nodes:
        node = nodes.pop(0)
        if "Index Name" in node or node["Node Type"] == "Seq Scan":
            yield {"Index Name": None, **node}
        nodes = node.get("Plans", []) + nodes
