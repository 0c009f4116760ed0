"""O8, I1, E4, G1, K1, K2, K8: the indexes that frequent statements read, among many unrelated rows.

The plans of other statements are checked in the tests of those statements: a claim among parked events
(test_outbox_claim), the batches of the sweep (test_retention_sweep), the inbox, the summary, deliveries and the message
store. EXPLAIN does not show the statements inside a SQL function, so those tests use the scan counts of PostgreSQL.
"""

from __future__ import annotations

import uuid
from collections import Counter
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements.batch_store import CHANGE_BATCH
from grantwire.entitlements.checks import CHECK, CHECK_MANY
from grantwire.entitlements.store import CHANGE, LIST
from grantwire.feed.change_feed import READ_PAGE
from grantwire.feed.snapshot import READ_SNAPSHOT
from grantwire.outbox import store
from grantwire.outbox.store import CLAIM
from grantwire.read_model.summary import SUMMARIZE
from grantwire.retention.checks import SELECT_DIFFERENCES
from grantwire.settings import load
from grantwire.wiring.workers.relay_outbox import SESSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import LiteralString

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
# All have started and none has ended.
_INSERT_TIMED = """
INSERT INTO user_entitlements
SELECT 'u' || n %% 10, 's' || n, 'ACTIVE', 1, now(), now() - interval '1 day', now() + n * interval '1 hour'
  FROM generate_series(1, %s) n
"""
_INSERT_AUDIT = """
INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail, version,
                               status, changed_at, occurred_at, expires_at)
SELECT gen_random_uuid(), 'c', 'GRANT', 'APPLIED', 'u' || n, 'item1', '{}', 1, 'ACTIVE', now(), %(day)s::timestamptz,
       CASE n %% 2 WHEN 0 THEN %(day)s::timestamptz + interval '30 days' END
  FROM generate_series(1, %(count)s) n
"""
_SELECT_AUDITED = """
SELECT operation_id, user_id, stock_keeping_unit, 'EntitlementGranted' AS event_type, version, occurred_at,
       ''::bytea AS digest, entitlement_fields(a, false) AS fields
  FROM entitlement_audit a WHERE occurred_at = %(day)s::timestamptz LIMIT 200
"""
_FIND_GENUINE = """
SELECT genuine_events(%s::uuid[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::timestamptz[], %s::bytea[],
                      %s::text[]) AS positions
"""
_INSERT_TIMES = """
INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at, expires_at, purchase_id,
                          expiring_pending)
SELECT 'timed' || n, 'item1', CASE WHEN n %% 2 = 0 AND n > %(due)s THEN 'EXPIRED' ELSE 'ACTIVE' END, 1, now(),
       CASE WHEN n %% 2 = 0 OR n <= %(due)s THEN now() - interval '1 day' ELSE now() + interval '30 days' END, 'p',
       n %% 2 = 1 AND n > %(due)s
  FROM generate_series(1, %(count)s) n
"""
_RECORD_DUE = "SELECT started, expiring, expired FROM expire_due(100, '0', '72 hours', 't', false, '{0,0,0}')"
# Changes of one entitlement in each of three months, one in each second.
_INSERT_AUDITED_CHANGES = """
INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail, version,
                               status, changed_at, occurred_at)
SELECT gen_random_uuid(), 'c', 'GRANT', 'APPLIED', 'u', 'item1', '{}', (month - 1) * 3000 + n, 'ACTIVE',
       make_timestamptz(2031, month, 15, 0, 0, 0, 'UTC') + n * interval '1 second',
       make_timestamptz(2031, month, 15, 0, 0, 0, 'UTC') + n * interval '1 second'
  FROM generate_series(1, 3) month, generate_series(1, %(count)s) n
"""
# Refused operations of the same entitlement, between these changes and after them.
_INSERT_REFUSALS = """
INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail,
                               occurred_at)
SELECT gen_random_uuid(), 'c', 'GRANT', 'ENTITLEMENT_STATE_CONFLICT', 'u', 'item1', '{}',
       make_timestamptz(2031, month, 15, 0, 0, 0, 'UTC') + n * interval '100 ms'
  FROM generate_series(1, 3) month, generate_series(1, %(count)s) n
"""
_SELECT_SCAN_COUNTS = """
SELECT relation::text AS name, pg_stat_get_xact_numscans(relation) AS scans
  FROM (SELECT indexrelid::regclass FROM pg_index WHERE indrelid = ANY (%(tables)s::regclass[])
         UNION ALL SELECT unnest(%(tables)s::regclass[])) AS r (relation)
"""
# Of a table: the rows that sequential scans returned. Of an index: the entries that its scans returned.
_SELECT_TUPLES_READ = """
SELECT relation::regclass::text, pg_stat_get_xact_tuples_returned(relation)
  FROM (SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = 'entitlement_audit'::regclass
         UNION ALL SELECT x.indexrelid FROM pg_inherits i JOIN pg_index x ON x.indrelid = i.inhrelid
                    WHERE i.inhparent = 'entitlement_audit'::regclass) AS r (relation)
"""
AUDIT_PARTITIONS = [f"entitlement_audit_y2031m0{month}" for month in (1, 2, 3)]

# The parameters of a change that are arrays in a batch.


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
    names = ("user_id", "after", "limit", "grace", "status", "prefix", "examined")
    statement = LIST % {name: f"${number}" for number, name in enumerate(names, start=1)}
    planned.execute(f"PREPARE page (text, text, bigint, interval, text, text, bigint) AS {statement}")
    (scan,) = _scans(planned, "EXECUTE page ('u7', 's5', 10, '0s', NULL, '', 11)")
    assert (scan["Node Type"], scan["Index Name"]) == ("Index Scan", "entitlements_pkey")
    (filtered,) = _scans(planned, "EXECUTE page ('u7', 's5', 10, '0s', 'ACTIVE', 's5', 10000)")
    assert filtered["Index Name"] == "entitlements_pkey"
    for each in (scan, filtered):
        assert each["Index Cond"].count("stock_keeping_unit") == 3  # after, and both ends of the prefix


_CHECK_PARAMETERS = {"user_id": "u7", "sku": "s107", "grace": "0s", "cache": "60s"}


def test_check_is_one_lookup_by_primary_key(planned: Rows) -> None:
    """K1: no other index or table is read, also for an entitlement that does not exist."""
    planned.execute(_INSERT_ENTITLEMENTS, (ROW_COUNT,))
    planned.execute("ANALYZE entitlements")
    statement = CHECK % {"user_id": "$1", "sku": "$2", "grace": "$3", "cache": "$4"}
    planned.execute(f"PREPARE checked (text, text, interval, interval) AS {statement}")
    (scan,) = _scans(planned, "EXECUTE checked ('u7', 's107', '0s', '60s')")
    assert (scan["Node Type"], scan["Index Name"]) == ("Index Scan", "entitlements_pkey")
    for sku, status in (("s107", "ACTIVE"), ("none", "NONE")):
        with _record_scans(planned, "entitlements", "entitlement_audit") as scanned:
            (row,) = planned.execute(CHECK, _CHECK_PARAMETERS | {"sku": sku}).fetchall()
        assert f'"status":"{status}"' in row["body"]
        assert scanned == {"entitlements_pkey": 1}


def test_checks_are_lookups_by_primary_key(planned: Rows) -> None:
    """K2: one for each pair."""
    planned.execute(_INSERT_ENTITLEMENTS, (ROW_COUNT,))
    planned.execute("ANALYZE entitlements")
    assert _scans_of_checks(planned) == {"entitlements_pkey": 200}


def test_checks_planned_on_an_empty_table_still_read_the_index(rows: Rows) -> None:
    """K1, K2: a connection keeps its plans until the table is analysed."""
    for _ in range(10):
        rows.execute(CHECK, _CHECK_PARAMETERS)
        _check_many(rows)
    rows.execute(_INSERT_ENTITLEMENTS, (ROW_COUNT,))
    with _record_scans(rows, "entitlements") as scanned:
        rows.execute(CHECK, _CHECK_PARAMETERS)
    assert scanned == {"entitlements_pkey": 1}
    assert _scans_of_checks(rows) == {"entitlements_pkey": 200}


@pytest.mark.parametrize("planned_on", ["full", "empty", "tiny"])
def test_history_and_past_check_read_only_applied_changes_in_order(rows: Rows, planned_on: str) -> None:
    """K8: they read as many rows as they need, and one row more in each partition, among many of the entitlement.

    Refused operations are in the audit, too, and there can be millions of them. They are not read.

    Also with a plan that was made while the partitions had no rows, or so few that it was cheaper to read them all.
    """
    queries = {
        "SELECT * FROM entitlement_history('u', 'item1', NULL, 10)": 10,
        "SELECT * FROM entitlement_history('u', 'item1', '2031-02-15T00:30:00Z', 10)": 10,
        "SELECT * FROM entitlement_at('u', 'item1', '2031-02-15T00:30:00Z', '2031-03-25Z')": 1,
        "SELECT * FROM entitlement_at('u', 'item1', '2031-01-01Z', '2031-03-25Z')": 1,
    }
    partitions = AUDIT_PARTITIONS
    _create_months(rows)
    rows.execute("INSERT INTO entitlements VALUES ('u', 'item1', 'ACTIVE', 9000, '2031-03-20Z')")
    if planned_on == "tiny":
        rows.execute(_INSERT_AUDITED_CHANGES, {"count": 1})
        rows.execute("ANALYZE entitlement_audit")
    if planned_on != "full":
        for query in [*queries] * 10:
            rows.execute(query)
    rows.execute(_INSERT_AUDITED_CHANGES, {"count": 3000})
    rows.execute(_INSERT_REFUSALS, {"count": 40_000})
    if planned_on == "full":
        rows.execute("ANALYZE entitlement_audit")
    for query, count in queries.items():
        with _record_scans(rows, *partitions) as scanned, _record_tuples(rows) as read:
            rows.execute(query)
        assert scanned.keys() <= _partition_indexes(rows, "entitlement_audit_history"), query
        assert 1 <= read.total() <= count + len(partitions), query


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


def test_batch_reads_only_indexes(planned: Rows) -> None:
    """K6: as a single grant, however full the tables are; also with a plan for empty tables."""
    parameters = _parameters("") | {"atomic": False, "wait_ms": 3500, "changes": Jsonb([_item("first", "new")])}
    assert planned.execute(CHANGE_BATCH, parameters).fetchall()[0]["outcomes"] == ["APPLIED"]
    for fill in (_INSERT_KEYS, _INSERT_ENTITLEMENTS, _INSERT_PUBLISHED):
        planned.execute(fill, (ROW_COUNT,))
    parameters["changes"] = Jsonb([_item("new", "u"), _item("k7", "v")])
    with _record_scans(planned, "idempotency_keys", "entitlements", "outbox_events") as scanned:
        (row,) = planned.execute(CHANGE_BATCH, parameters).fetchall()
    assert row["outcomes"] == ["APPLIED", "REPLAYED"]
    assert scanned.keys() == {"idempotency_keys_pkey", "entitlements_pkey", "outbox_events_open"}


@pytest.mark.parametrize("due", [0, 3])
def test_expiry_reads_only_the_indexes_of_times(planned: Rows, due: int) -> None:
    """K4: however many entitlements have no times, have ended or end later; also with a plan for an empty table."""
    planned.execute(_RECORD_DUE)
    planned.execute(_INSERT_ENTITLEMENTS, (ROW_COUNT,))
    planned.execute(_INSERT_TIMES, {"count": ROW_COUNT, "due": due})
    times = {"entitlements_starting": 1, "entitlements_ending": 1, "entitlements_expiring": 1}
    with _record_scans(planned, "entitlements") as scanned:
        planned.execute(_RECORD_DUE.replace("'0'", "'2 days'"))
    assert scanned == times  # an entitlement in its grace is not read
    with _record_scans(planned, "entitlements") as scanned:
        row = planned.execute(_RECORD_DUE).fetchone()
    assert row == {"started": 0, "expiring": 0, "expired": due}
    assert scanned == times | ({"entitlements_pkey": 3 * due} if due else {})


@pytest.mark.parametrize("backlog", [_INSERT_PUBLISHED, _INSERT_PARKED], ids=["published", "parked"])
def test_finalise_reads_only_indexes(planned: Rows, backlog: str) -> None:
    """O2, O8: it reads the events by their ids, and the open events of their aggregates."""
    planned.execute(backlog, (ROW_COUNT,))
    planned.execute(_INSERT_OPEN, (300,))
    planned.execute("ANALYZE outbox_events")
    parameters = {"token": "x", "limit": 100, "lease": timedelta(seconds=30), "now": None}
    claimed = [row["event_id"] for row in planned.execute(CLAIM, parameters).fetchall()]
    with _record_scans(planned, "outbox_events") as scanned:
        planned.execute("SELECT outbox_finalise('x', %s, NULL, %s)", (claimed, list(range(len(claimed)))))
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


def test_genuine_events_read_one_partition_by_index(planned: Rows) -> None:
    """G1: a batch reads the partition of its events only; events that are not found read each partition by index.

    The index has only applied changes, so that many refused operations of an entitlement make no difference.
    """
    partitions = _fill_audit(planned)
    planned.execute("ANALYZE entitlement_audit")
    events = planned.execute(_SELECT_AUDITED, {"day": "2031-02-15"}).fetchall()
    with _record_scans(planned, *partitions) as scanned:
        assert len(_find_genuine(planned, events)) == 200
    assert scanned == {_partition_index(planned, "entitlement_audit_history", "y2031m02"): 200}
    for event in events:
        event["user_id"] = "forged"
    with _record_scans(planned, *partitions) as scanned:
        assert _find_genuine(planned, events) == []
    assert not scanned.keys() & set(partitions)
    assert scanned[_partition_index(planned, "entitlement_audit_history", "y2031m01")] == 200


def test_genuine_events_planned_on_empty_partitions_still_read_the_index(rows: Rows) -> None:
    """G1: a bridge keeps its plans for as long as its execution environment lives."""
    for _ in range(10):
        assert _find_genuine(rows, []) == []
    partitions = _fill_audit(rows)
    events = rows.execute(_SELECT_AUDITED, {"day": "2031-01-15"}).fetchall()
    with _record_scans(rows, *partitions) as scanned:
        assert len(_find_genuine(rows, events)) == 200
    assert scanned == {_partition_index(rows, "entitlement_audit_history", "y2031m01"): 200}


@pytest.mark.parametrize("analysed", [True, False], ids=["analysed", "planned on an empty table"])
def test_summary_reads_the_indexes_of_starts_and_ends(planned: Rows, analysed: bool) -> None:
    """K3: only entitlements that are scheduled or have reached their end are read, among many with other times."""
    statement = SUMMARIZE
    for number, name in enumerate(("user_id", "after", "limit", "grace", "now"), start=1):
        statement = statement.replace(f"%({name})s", f"${number}")
    planned.execute(f"PREPARE summary (text, text, bigint, interval, timestamptz) AS {statement}")
    planned.execute("EXECUTE summary ('u7', '', 10, '1 hour', NULL)")
    planned.execute(_INSERT_TIMED, (ROW_COUNT,))
    if analysed:
        planned.execute("ANALYZE user_entitlements, user_summaries")
    scans = list(_scans(planned, "EXECUTE summary ('u7', '', 10, '1 hour', NULL)"))
    conditions = {
        scan["Index Name"]: scan["Index Cond"] for scan in scans if scan.get("Relation Name") != "user_summaries"
    }
    assert conditions.keys() == {
        *("user_entitlements_starting", "user_entitlements_ending", "user_entitlements_active"),
    }
    assert "starts_at >" in conditions["user_entitlements_starting"]
    assert "expires_at <=" in conditions["user_entitlements_ending"]


def test_page_of_changes_reads_its_rows_in_the_order_of_the_index(planned: Rows) -> None:
    """K9: an index scan of each partition, which ends with the page, however many changes there are."""
    _fill_audit(planned)
    planned.execute("ANALYZE entitlement_audit")
    for after in (None, _transaction_of_month(planned, 2)):
        _assert_page_reads_only_its_rows(planned, after)


def test_page_of_changes_planned_on_empty_partitions_still_reads_the_index(rows: Rows) -> None:
    """K9: a connection keeps its plans until the partitions are analysed, many thousand changes later."""
    _create_months(rows)
    rows.execute("VACUUM ANALYZE entitlement_audit")  # now PostgreSQL knows that the partitions are empty
    for _ in range(10):
        _read_changes(rows, None)
    _insert_audit(rows)
    _assert_page_reads_only_its_rows(rows, None)
    _assert_page_reads_only_its_rows(rows, _transaction_of_month(rows, 2))


def test_lag_of_changes_reads_a_bounded_number_of_rows(rows: Rows, owner_url: str) -> None:
    """K9: also while a transaction holds back many changes, and with a plan made on empty partitions."""
    _create_months(rows)
    rows.execute("VACUUM ANALYZE entitlement_audit")  # now PostgreSQL knows that the partitions are empty
    for _ in range(10):
        rows.execute("SELECT change_feed_lag()")
    with psycopg.connect(owner_url) as holder:
        holder.execute("SELECT pg_current_xact_id()")
        _insert_audit(rows)
        with _record_scans(rows, *AUDIT_PARTITIONS) as scanned, _record_tuples(rows) as read:
            rows.execute("SELECT change_feed_lag()")
    assert scanned.keys() == {name for name in _feed_indexes(rows) if "_y2031m" in name}
    assert read.total() <= 1000 + len(_feed_indexes(rows))


def test_settled_through_reads_a_bounded_number_of_rows(rows: Rows) -> None:
    """W3: among many rows of every stage, behind the mark and before it, and with plans made on empty tables."""
    tables = ("outbox_events", "notifications", "processed_events", "notification_nats_dlq", "entitlements")
    rows.execute(f"VACUUM ANALYZE {', '.join(tables)}")  # now PostgreSQL knows that the tables are empty
    for _ in range(10):
        rows.execute("SELECT settled_through(50, '0s')")
    for insert in (_INSERT_PUBLISHED, _INSERT_PARKED, _INSERT_OPEN, _INSERT_ENTITLEMENTS):
        rows.execute(insert, (ROW_COUNT,))
    rows.execute(
        """
        INSERT INTO processed_events SELECT event_id FROM outbox_events WHERE status = 'PUBLISHED';
        INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload,
                                   status, next_retry_at, sent_at)
        SELECT event_id, event_id, event_type, aggregate_key, 's', 1, '{}',
               CASE n % 2 WHEN 0 THEN 'SENT' ELSE 'PENDING' END,
               CASE n % 2 WHEN 1 THEN now() END, CASE n % 2 WHEN 0 THEN now() END
          FROM (SELECT o.*, row_number() OVER () AS n FROM outbox_events o WHERE o.status = 'PUBLISHED') AS published
        """
    )
    for mark in ("-infinity", "infinity"):
        rows.execute("UPDATE outbox_confirmation SET mark = %s", (mark,))
        with _record_scans(rows, *tables) as scanned, _record_rows(rows, *tables) as read:
            rows.execute("SELECT settled_through(50, '0s')")
        assert set(scanned) <= {
            *("outbox_events_ready", "outbox_events_published_at", "outbox_events_published_late"),
            *("processed_events_pkey", "notifications_unsent", "entitlements_starting", "entitlements_ending"),
            *("notification_nats_dlq_event", "notification_nats_dlq_unconfirmed_change"),
        }
        assert read["outbox_events"] + read["processed_events"] <= 4 * 50 + 10
        assert read["notifications"] + read["entitlements"] <= 3


@pytest.mark.parametrize("share", [2, 1], ids=["half has arrived", "nothing has arrived"])
def test_status_of_the_confirmation_reads_as_many_rows_as_its_limit(rows: Rows, share: int) -> None:
    """W3, W4: behind the mark and in the list, with a limit for which a hash of the whole inbox seems cheaper."""
    limit = 2000
    rows.execute(_INSERT_PUBLISHED, (ROW_COUNT,))
    rows.execute("UPDATE outbox_events SET published_at = now() - interval '1 day'")
    rows.execute("INSERT INTO processed_events SELECT event_id FROM outbox_events")
    rows.execute(_INSERT_PUBLISHED.replace("'u'", "'v'"), (limit,))
    rows.execute(
        "INSERT INTO outbox_unconfirmed (event_id, state, changed_at, found_at)"
        " SELECT event_id, 'WAITING', created_at, now() FROM outbox_events WHERE published_at < now() LIMIT %s",
        (limit,),
    )
    rows.execute(
        "INSERT INTO processed_events SELECT event_id FROM (SELECT event_id, row_number() OVER () AS n"
        " FROM outbox_events WHERE aggregate_key LIKE 'v%%') AS o WHERE n %% %s = 1",
        (share,),
    )
    rows.execute("UPDATE outbox_confirmation SET mark = now() - interval '1 hour'")
    tables = ("outbox_events", "processed_events", "notification_nats_dlq", "outbox_unconfirmed")
    rows.execute(f"ANALYZE {', '.join(tables)}")
    for statement, most in (
        ("SELECT settled_through(%s, '0s')", 4 * limit),
        ("SELECT outbox_confirmation_status(%s)", 5 * limit),
    ):
        for _ in range(7):  # also with the plan that is kept
            with _record_rows(rows, *tables) as read:
                rows.execute(statement, (limit,))
            assert read.total() <= most + 10, (statement, read)


def test_last_dropped_change_is_found_by_the_index(rows: Rows) -> None:
    """K9: dropping a month does not read its rows."""
    rows.execute("SELECT entitlement_audit_ensure_partitions(0, '2020-01-15')")
    rows.execute(_INSERT_AUDIT, {"day": "2020-01-15", "count": ROW_COUNT // 4})
    with rows.transaction():
        before = _tuples_read(rows)
        rows.execute("SAVEPOINT before_the_drop")
        rows.execute("SELECT entitlement_audit_drop_oldest(1)")
        rows.execute("ROLLBACK TO SAVEPOINT before_the_drop")
        read = _tuples_read(rows) - before
    assert read.total() <= 10


def test_page_of_the_snapshot_reads_the_primary_key_in_order(planned: Rows) -> None:
    """K9: the cost of a page does not depend on the number of entitlements."""
    planned.execute(_INSERT_ENTITLEMENTS, (ROW_COUNT,))
    planned.execute("ANALYZE entitlements")
    statement = READ_SNAPSHOT
    for number, name in enumerate(("grace", "user_id", "stock_keeping_unit", "limit"), start=1):
        statement = statement.replace(f"%({name})s", f"${number}")
    planned.execute(f"PREPARE page (text, text, text, integer) AS {statement}")
    (scan,) = _scans(planned, "EXECUTE page ('0 s', 'u7', 's5', 10)")
    assert (scan["Node Type"], scan["Index Name"]) == ("Index Scan", "entitlements_pkey")


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


def _check_many(rows: Rows) -> str:
    names = {"user_ids": [f"u{n % 100}" for n in range(200)], "skus": [f"s{n}" for n in range(200)]}
    (row,) = rows.execute(CHECK_MANY, names | {"grace": "0s", "cache": "60s"}).fetchall()
    (body,) = row.values()
    return str(body)


def _scans_of_checks(rows: Rows) -> Counter[str]:
    """Return the scans of a check of 200 entitlements, all but one of which exist."""
    with _record_scans(rows, "entitlements") as scanned:
        assert _check_many(rows).count('"allowed":true') == 199
    return scanned


def _read_changes(rows: Rows, after: str | None) -> None:
    parameters = {
        "installation": None,
        "transaction_id": after,
        "occurred_at": datetime.max.replace(tzinfo=UTC) if after else None,
        "operation_id": uuid.UUID(int=2**128 - 1) if after else None,
        "limit": 100,
    }
    (row,) = rows.execute(READ_PAGE, parameters).fetchall()
    assert row["outcome"] == "OK"


def _assert_page_reads_only_its_rows(rows: Rows, after: str | None) -> None:
    with _record_scans(rows, *AUDIT_PARTITIONS) as scanned, _record_tuples(rows) as read:
        _read_changes(rows, after)
    assert scanned.keys() == {name for name in _feed_indexes(rows) if "_y2031m" in name}
    assert 101 <= read.total() <= 101 + len(_feed_indexes(rows))


def _transaction_of_month(rows: Rows, month: int) -> str:
    """Return the id of the transaction that filled a month: the last one before the next page."""
    (row,) = rows.execute(
        "SELECT transaction_id::text AS id FROM entitlement_audit WHERE occurred_at = %s::timestamptz LIMIT 1",
        (f"2031-0{month}-15",),
    ).fetchall()
    return str(row["id"])


def _feed_indexes(rows: Rows) -> set[str]:
    """Return the names of the partitions' indexes of the feed."""
    return _partition_indexes(rows, "entitlement_audit_changes")


def _partition_indexes(rows: Rows, index: str) -> set[str]:
    """Return the names of the indexes of partitions that belong to an index of the audit."""
    listed = rows.execute(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = %s::regclass", (index,)
    )
    return {row["name"] for row in listed}


def _partition_index(rows: Rows, index: str, month: str) -> str:
    (name,) = (name for name in _partition_indexes(rows, index) if month in name)
    return name


@contextmanager
def _record_tuples(rows: Rows) -> Iterator[Counter[str]]:
    """Count the entries that scans of the indexes of the feed return, and the rows that other scans read."""
    read: Counter[str] = Counter()
    before = _tuples_read(rows)
    yield read
    read += _tuples_read(rows) - before


@contextmanager
def _record_rows(rows: Rows, *tables: str) -> Iterator[Counter[str]]:
    """Count the rows of each table that scans read, by an index or of the whole table."""
    select = (
        "SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0) AS read FROM pg_stat_xact_user_tables"
        " WHERE relname = ANY (%s)"
    )

    def count() -> Counter[str]:
        return Counter({row["relname"]: row["read"] for row in rows.execute(select, (list(tables),)).fetchall()})

    read: Counter[str] = Counter()
    before = count()
    yield read
    read += count() - before


def _tuples_read(rows: Rows) -> Counter[str]:
    cursor = rows.cursor(row_factory=tuple_row)
    return Counter(dict(cursor.execute(_SELECT_TUPLES_READ).fetchall()))


@pytest.mark.parametrize(
    ("ask", "index"),
    [
        ("SELECT trace_changes(NULL, NULL, %(u)s, NULL, NULL, NULL, 51, NULL) AS found", "purchase_id_occurred_at"),
        ("SELECT trace_changes(NULL, NULL, NULL, %(u)s, NULL, NULL, 51, NULL) AS found", "trace_id_occurred_at"),
        ("SELECT trace_changes(NULL, NULL, NULL, NULL, %(u)s, NULL, 51, NULL) AS found", "expr_occurred_at"),
        (
            "SELECT trace_changes(NULL, NULL, NULL, NULL, NULL, NULL, 51, %(u)s) AS found",
            "correlation_id_occurred_at",
        ),
    ],
    ids=["purchase", "trace id", "key", "correlation id"],
)
def test_trace_planned_on_empty_partitions_still_reads_its_index(rows: Rows, ask: LiteralString, index: str) -> None:
    """T2: no partition is read completely, whichever way a trace is asked for."""
    for _ in range(10):
        rows.execute(ask, {"u": "u7"})
    partitions = _fill_audit(rows)
    rows.execute(
        "UPDATE entitlement_audit"
        " SET purchase_id = user_id, trace_id = user_id, correlation_id = user_id,"
        " detail = jsonb_build_object('key_fingerprint', user_id)"
    )
    with _record_scans(rows, *partitions) as scanned:
        (row,) = rows.execute(ask, {"u": "u7"}).fetchall()
    assert len(row["found"]) == 3
    assert not scanned.keys() & set(partitions)
    assert {f"{partition}_{index}_idx" for partition in partitions} <= scanned.keys()


def _fill_audit(rows: Rows) -> list[str]:
    """Insert rows into three months of the audit, and return the names of their partitions."""
    _create_months(rows)
    _insert_audit(rows)
    return AUDIT_PARTITIONS


def _create_months(rows: Rows) -> None:
    rows.execute("SELECT entitlement_audit_ensure_partitions(2, '2031-01-15')")


def _insert_audit(rows: Rows) -> None:
    for month in (1, 2, 3):
        rows.execute(_INSERT_AUDIT, {"day": f"2031-0{month}-15", "count": ROW_COUNT // 4})


def _find_genuine(rows: Rows, events: Sequence[dict[str, Any]]) -> list[int]:
    names = (
        *("operation_id", "user_id", "stock_keeping_unit", "event_type", "version", "occurred_at", "digest"),
        "fields",
    )
    columns = [[event[name] for event in events] for name in names]
    (row,) = rows.execute(_FIND_GENUINE, columns).fetchall()
    return list(row["positions"])


def _enqueue(rows: Rows, aggregate: str) -> None:
    rows.execute("SELECT outbox_enqueue(gen_random_uuid(), 'EntitlementGranted', %s, 1, '{}', NULL)", (aggregate,))


def _parameters(key: str) -> dict[str, Any]:
    return {
        "caller": "local",
        "route": "route",
        "key": key,
        "request_hash": "v1:0",
        "ttl": timedelta(days=1),
        "lock_wait_ms": 2000,
        "grace": "0 seconds",
        "notice": "0 seconds",
        "change": Jsonb(_fields("new")),
    }


def _fields(user_id: str) -> dict[str, Any]:
    """Return the fields of a change."""
    return {
        "operation": "GRANT",
        "user_id": user_id,
        "stock_keeping_unit": "item",
        "reason": "purchase",
        "purchase_id": "p",
        "operation_id": str(uuid.uuid4()),
        "caller": "local",
        "trace_id": "1-0-0",
    }


def _item(key: str, user_id: str) -> dict[str, Any]:
    """Return an item of a batch."""
    return {"route": "route", "key": key, "request_hash": "v1:0", **_fields(user_id)}


def _change(rows: Rows, key: str) -> str:
    row = rows.cursor(row_factory=tuple_row).execute(CHANGE, _parameters(key)).fetchone()
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
