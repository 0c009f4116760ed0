"""Other ways to the same end, in the same rounds as ours: Powertools, pgqueuer, and the same statements one by one.

What a fleet calls takes the client's number and returns a call that looks at its own result, as in `callers`. What
drains a queue does so in a process of its own, and returns how many it did a second.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg

from grantwire.broker import Broker, BrokerSettings
from grantwire.idempotency import RedisStore, idempotent
from grantwire.idempotency.stores.redis import connect
from grantwire.identifiers import uuid7
from grantwire.outbox.encoding import encode_event
from grantwire.outbox.store import ClaimedEvent
from grantwire.settings import load
from grantwire.topology import TopologySettings, ensure_topology
from tests.bench.callers import KEPT_KEYS, VALKEY_URL
from tests.bench.fleet import Fleet
from tests.bench.paths.requests import CLIENTS
from tests.bench.results import Finding, Section
from tests.bench.rounds import interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.rounds import Rounds
    from tests.bench.servers import Servers

    Call = Callable[[], None]
    Work = Callable[[str], dict[str, Any]]

POWERTOOLS = "Powertools on Valkey"
LIBRARY = "@idempotent on Valkey"
NAIVE = "statement by statement"
OURS = "Grantwire"

_ROUTE = "POST /v1/entitlements/grants"
_RELAY_BATCH = 50
# 500 to 2,000 are alike on two cores, and about three times as fast as its default of 10.
_QUEUE_BATCH = 1_000
_PATIENCE = 600.0


def powertools_new(number: int) -> Call:
    """Nothing to do, for a key that Powertools has never seen."""
    return _first_calls(_powertools(), f"p_{os.getpid()}_{number}")


def powertools_replay(number: int) -> Call:
    """Powertools' stored result of a key that it has seen."""
    return _repeated_calls(_powertools(), f"p_{os.getpid()}_{number}")


def library_new(number: int) -> Call:
    """Nothing to do, for a key that our library's Redis store has never seen."""
    return _first_calls(_library(), f"l_{os.getpid()}_{number}")


def library_replay(number: int) -> Call:
    """The stored result of a key that our library's Redis store has seen."""
    return _repeated_calls(_library(), f"l_{os.getpid()}_{number}")


def _powertools() -> Work:
    """As light as it gets: the key is all of the payload, so nothing is searched for and little is hashed."""
    from aws_lambda_powertools.utilities.idempotency import (  # noqa: PLC0415 - only its own clients load it
        IdempotencyConfig,
        idempotent_function,
    )
    from aws_lambda_powertools.utilities.idempotency.persistence.cache import (  # noqa: PLC0415 - as above
        CachePersistenceLayer,
    )

    runs = itertools.count()
    config = IdempotencyConfig(expires_after_seconds=86_400, lambda_context=_Context())  # type: ignore[arg-type]
    store = CachePersistenceLayer(client=connect(os.environ[VALKEY_URL]))  # type: ignore[arg-type]

    def run(*, key: str) -> dict[str, Any]:
        return {"key": key, "run": next(runs)}

    work = idempotent_function(run, data_keyword_argument="key", config=config, persistence_store=store)
    return lambda key: work(key=key)


class _Context:
    """What Powertools asks of Lambda's context; without one it cannot tell when a claim ends."""

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


def _library() -> Work:
    runs = itertools.count()

    @idempotent(RedisStore(connect(os.environ[VALKEY_URL]), prefix="bench:"), key=lambda key: key, name="bench")
    def work(key: str) -> dict[str, Any]:
        return {"key": key, "run": next(runs)}

    return work


def _first_calls(work: Work, prefix: str) -> Call:
    turns = itertools.count()

    def call() -> None:
        turn = next(turns)
        assert work(f"{prefix}_{turn}") == {"key": f"{prefix}_{turn}", "run": turn}

    return call


def _repeated_calls(work: Work, prefix: str) -> Call:
    """A second run would have another number in its result."""
    known = [(key, work(key)) for key in (f"{prefix}_{turn}" for turn in range(KEPT_KEYS))]
    turns = itertools.cycle(known)

    def call() -> None:
        key, result = next(turns)
        assert work(key) == result

    return call


_LOCK = "SELECT pg_advisory_xact_lock(%s)"
_STORED = """
SELECT request_hash, status_code, response_body FROM idempotency_keys
 WHERE caller = 'local' AND route = %s AND idempotency_key = %s AND expires_at > now()
"""
_RIGHT = "SELECT status, version FROM entitlements WHERE user_id = %s AND stock_keeping_unit = %s FOR UPDATE"
_GRANT = """
INSERT INTO entitlements AS e (user_id, stock_keeping_unit, status, version, updated_at)
VALUES (%s, %s, 'ACTIVE', 1, clock_timestamp())
    ON CONFLICT (user_id, stock_keeping_unit) DO UPDATE
   SET status = 'ACTIVE', version = e.version + 1, updated_at = clock_timestamp()
RETURNING version, updated_at
"""
_EVENT = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, trace_id, ready)
VALUES (%s, 'EntitlementGranted', %s, %s, %s::jsonb, '1-0-0', true)
"""
_AUDIT = """
INSERT INTO entitlement_audit
       (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail)
VALUES (%s, 'local', 'GRANT', 'APPLIED', %s, %s, '1-0-0', %s::jsonb)
"""
_KEEP = """
INSERT INTO idempotency_keys AS k VALUES ('local', %s, %s, %s, 200, %s, now(), now() + interval '24 hours')
    ON CONFLICT (caller, route, idempotency_key) DO UPDATE
   SET request_hash = EXCLUDED.request_hash, status_code = EXCLUDED.status_code,
       response_body = EXCLUDED.response_body, created_at = EXCLUDED.created_at, expires_at = EXCLUDED.expires_at
 WHERE k.expires_at <= now()
"""


def naive_grant(number: int) -> Call:
    """A grant with all our guarantees, as the first description of it reads: nine round trips, no HTTP around it."""
    connection = psycopg.connect(os.environ["DATABASE_URL"], prepare_threshold=0)
    cursor = connection.cursor()
    names = (f"n_{os.getpid()}_{number}_{turn}" for turn in itertools.count())

    def call() -> None:
        assert _granted(cursor, next(names), "item1") == 1
        connection.commit()

    return call


def _granted(cursor: psycopg.Cursor[Any], name: str, sku: str) -> int:
    """The version that the right has now. User, purchase and key have one name; the BEGIN travels by itself."""
    digest = hashlib.sha256(name.encode()).digest()
    cursor.execute(_LOCK, (int.from_bytes(digest[:8], signed=True),))
    assert cursor.execute(_STORED, (_ROUTE, name)).fetchone() is None
    assert cursor.execute(_RIGHT, (name, sku)).fetchone() is None
    row = cursor.execute(_GRANT, (name, sku)).fetchone()
    assert row is not None
    version, at = row
    operation_id, moment = uuid7(), at.astimezone(UTC).isoformat()
    right = {"user_id": name, "stock_keeping_unit": sku, "version": version}
    event = right | {
        "event_id": str(operation_id),
        "event_type": "EntitlementGranted",
        "occurred_at": moment,
        "source": "purchase",
        "source_id": name,
    }
    detail = {"reason": "purchase", "purchase_id": name, "version": version}
    cursor.execute(_EVENT, (operation_id, f"{name}/{sku}", version, json.dumps(event)))
    cursor.execute(_AUDIT, (operation_id, name, sku, json.dumps(detail)))
    answer = json.dumps(right | {"status": "ACTIVE", "updated_at": moment})
    cursor.execute(_KEEP, (_ROUTE, name, f"v1:{digest.hex()}", answer))
    assert cursor.rowcount == 1
    return int(version)


# The claim has no use for our own indexes, which know heads and successors.
_NAIVE_INDEX: LiteralString = """
CREATE INDEX naive_claim ON outbox_events (created_at) WHERE status IN ('PENDING', 'IN_FLIGHT')
"""
_NAIVE_CLAIM = """
WITH cte AS (
  SELECT event_id FROM outbox_events
   WHERE (status = 'PENDING' AND (next_retry_at IS NULL OR next_retry_at <= now()))
      OR (status = 'IN_FLIGHT' AND (lease_until IS NULL OR lease_until <= now()))
   ORDER BY created_at
   LIMIT %s
     FOR UPDATE SKIP LOCKED)
UPDATE outbox_events e
   SET status = 'IN_FLIGHT', locked_by = %s, locked_at = now(), lease_until = now() + interval '30 seconds',
       last_error = NULL
  FROM cte
 WHERE e.event_id = cte.event_id
RETURNING e.event_id::text, e.event_type, e.aggregate_key, e.aggregate_version, e.payload, e.trace_id,
          e.attempt_count, false
"""
_NAIVE_PUBLISHED = """
UPDATE outbox_events SET status = 'PUBLISHED', published_at = now(), lease_until = NULL, ready = false
 WHERE event_id = %s AND locked_by = %s
"""


def naive_relay(servers: Servers, environ: Mapping[str, str]) -> float:
    """Drain an outbox by claims of 50, each event published and marked before the next; events a second."""
    with servers.owner(environ["DATABASE_URL"]) as owner:
        owner.execute(_NAIVE_INDEX)
        try:
            return _alone(_relay_naively, dict(environ))
        finally:
            owner.execute("DROP INDEX naive_claim")


async def _relay_naively(environ: Mapping[str, str]) -> float:
    broker = Broker(load(BrokerSettings, environ))
    await broker.connect()
    await ensure_topology(broker, load(TopologySettings, environ))
    subject, done = environ["ENTITLEMENT_NATS_SUBJECT"], 0
    with psycopg.connect(environ["DATABASE_URL"], autocommit=True, prepare_threshold=0) as connection:
        began = time.monotonic()
        while rows := connection.execute(_NAIVE_CLAIM, (_RELAY_BATCH, "naive")).fetchall():
            for event in map(ClaimedEvent._make, rows):
                await broker.jetstream.publish(subject, encode_event(event.payload), headers=_headers(event))
                done += connection.execute(_NAIVE_PUBLISHED, (event.event_id, "naive")).rowcount
        seconds = time.monotonic() - began
    await broker.close()
    return done / seconds


def _headers(event: ClaimedEvent) -> dict[str, str]:
    return {"Nats-Msg-Id": str(event.event_id), "event_type": event.event_type, "aggregate_key": event.aggregate_key}


class PgQueuer:
    """pgqueuer's queue, in a database of its own, with jobs that do nothing."""

    def __init__(self, servers: Servers) -> None:
        self._url = servers.databases.empty()
        self._jobs = 0
        _alone(_install_queue, self._url)

    def prepare(self, jobs: int) -> None:
        """Add so many jobs."""
        self._jobs = int(_alone(_enqueue, self._url, jobs))

    def drain(self) -> float:
        """Let one worker do all of them; jobs a second."""
        return self._jobs / _alone(_drain_queue, self._url, self._jobs)


async def _install_queue(url: str) -> float:
    from pgqueuer import Queries  # noqa: PLC0415 - only its own process loads it

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await Queries.from_psycopg_connection(connection).install()
    return 0.0


async def _enqueue(url: str, jobs: int) -> float:
    from pgqueuer import Queries  # noqa: PLC0415 - as above

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("TRUNCATE pgqueuer_log")
        added = await Queries.from_psycopg_connection(connection).enqueue(["noop"] * jobs, [None] * jobs, [0] * jobs)
        await connection.execute("VACUUM ANALYZE")
    return len(added)


# Its worker over psycopg waits a second before it claims for the first time, and some more when all is done. Neither
# tells how fast it works, so it is its own log that does: from the first claim to the last job's end.
_WORKED = """
SELECT count(*) FILTER (WHERE status = 'successful'),
       extract(epoch FROM max(created) - min(created) FILTER (WHERE status = 'picked'))::double precision
  FROM pgqueuer_log
"""


async def _drain_queue(url: str, jobs: int) -> float:
    from pgqueuer import PgQueuer, types  # noqa: PLC0415 - as above

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        queue = PgQueuer.from_psycopg_connection(connection)
        queue.entrypoint("noop")(_nothing)
        await queue.qm.run(
            batch_size=_QUEUE_BATCH, mode=types.QueueExecutionMode.drain, log_aggregation_interval=timedelta(0)
        )
        done, seconds = await (await connection.execute(_WORKED)).fetchone() or (0, 0.0)
    assert done == jobs, f"pgqueuer did {done} of {jobs} jobs"
    return float(seconds)


async def _nothing(_job: object) -> None:
    """The job."""


def _alone(work: Callable[..., Coroutine[Any, Any, float]], *arguments: Any) -> float:
    """Run it in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        return executor.submit(_run, work, *arguments).result(_PATIENCE)


def _run(work: Callable[..., Coroutine[Any, Any, float]], *arguments: Any) -> float:
    return asyncio.run(work(*arguments))


_REMARKS = (
    (
        f"All of these are {CLIENTS} clients, each a process with a connection of its own, in the same rounds. Every "
        "result is looked at, and the rows that the grants should have written are counted at the end."
    ),
    (
        "*Statement by statement* keeps every promise that a grant keeps, with the same tables and in one transaction, "
        "in nine round trips. It is called with plain values: it parses no request, writes no log line and wakes no "
        "relay, all of which is part of ours."
    ),
    (
        "*Powertools* promises less than a grant. It claims a key in one call and saves the result in another, after "
        "the effect: if the process dies between the two, the effect has happened and no record says so. The Valkey "
        "here keeps nothing on disk, and one that replicates may lose its last writes in a failover; a grant is on "
        "disk before it is answered. The function behind the key does nothing, where a grant changes a right and "
        "writes an event and an audit row."
    ),
    (
        "*@idempotent* is our own library on the same Valkey, through the same client and with the same kind of "
        "contract as Powertools. Each of its calls also writes a line of metrics, which Powertools does not."
    ),
    (
        "*pgqueuer*, which stands beside the relay, is a queue of jobs that do nothing: there is no order within an "
        "aggregate, no message that is published and acknowledged, and no change that a job was committed with. One "
        f"worker takes {_QUEUE_BATCH:,} at a time and is timed from its first claim to its last job's end."
    ),
)


_COUNTS: LiteralString = """
SELECT (SELECT count(*) FROM entitlements), (SELECT count(*) FROM outbox_events),
       (SELECT count(*) FROM entitlement_audit), (SELECT count(*) FROM idempotency_keys)
"""


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Grants and replays, ours and theirs."""
    new = {
        OURS: "tests.bench.callers:grant",
        NAIVE: "tests.bench.peers:naive_grant",
        LIBRARY: "tests.bench.peers:library_new",
        POWERTOOLS: "tests.bench.peers:powertools_new",
    }
    repeated = {
        OURS: "tests.bench.callers:replay",
        LIBRARY: "tests.bench.peers:library_replay",
        POWERTOOLS: "tests.bench.peers:powertools_replay",
    }
    grants = _compare(servers, effort, progress, "peers, new", new)
    replays = _compare(servers, effort, progress, "peers, replay", repeated)
    servers.drop_databases()
    return Section(
        "Peers",
        findings=[
            _finding(grants, "grant", OURS, NAIVE),
            _finding(grants, "grant", OURS, POWERTOOLS),
            _finding(replays, "replay of a grant", OURS, POWERTOOLS),
            _finding(grants, "new key", LIBRARY, POWERTOOLS),
            _finding(replays, "known key", LIBRARY, POWERTOOLS),
        ],
        remarks=list(_REMARKS),
    )


def _compare(servers: Servers, effort: Effort, progress: Progress, title: str, works: Mapping[str, str]) -> Rounds:
    """Each contender has clients and a database of its own; a call that nobody timed has connected each client."""
    with ExitStack() as stack:
        urls = {name: servers.database() for name in works}
        fleets = {
            name: stack.enter_context(
                Fleet(work, CLIENTS, servers.environ(urls[name]) | {VALKEY_URL: servers.valkey.url})
            )
            for name, work in works.items()
        }
        before = {name: _counts(servers, url) for name, url in urls.items()}
        contenders = {name: _rate(fleet, effort.seconds) for name, fleet in fleets.items()}
        measured = interleave(title, effort.rounds, contenders, progress)
        for name, url in urls.items():
            made = fleets[name].calls if works[name].endswith("grant") else 0
            expected = tuple(count + made for count in before[name])
            assert _counts(servers, url) == expected, f"{name} did not write what it should have"
    return measured


def _counts(servers: Servers, url: str) -> tuple[Any, ...]:
    """Rights, events, audit rows and stored answers."""
    with servers.owner(url) as owner:
        row = owner.execute(_COUNTS).fetchone()
    assert row is not None
    return row


def _rate(fleet: Fleet, seconds: float) -> Callable[[], float]:
    return lambda: fleet.run(seconds).rate


def _finding(rounds: Rounds, what: str, ours: str, peer: str) -> Finding:
    factor = rounds.ratio(ours, peer)
    times = f"{factor.median:.1f} [{factor.low:.1f}–{factor.high:.1f}] times"  # noqa: RUF001 - a range
    rates = f"{rounds.rate(ours).median:,.0f} a second against {rounds.rate(peer).median:,.0f}"
    return Finding(f"{what}: {ours} against {peer}", f"{times}, {rates}")
