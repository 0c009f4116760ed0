"""Alternatives to a grant's idempotency: Powertools, and Grantwire's own library, both on the same Valkey.

As in `callers`, a factory gets the number of a client and returns a call that checks its own result.
"""

from __future__ import annotations

import itertools
import os
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from redis import Redis

from tests.bench.callers import KEYS_PER_CLIENT, VALKEY_URL
from tests.bench.fleet import Fleet
from tests.bench.job_queue import BATCH_SIZE
from tests.bench.naive import CLAIM_SIZE, FETCH_SIZE
from tests.bench.results import NOT_SLOWER, Finding, Section
from tests.bench.rounds import run_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from grantwire_idempotency import Store
    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.rounds import Rounds
    from tests.bench.servers import Servers

    Call = Callable[[], None]
    Work = Callable[[str], dict[str, Any]]

POWERTOOLS = "Powertools on Valkey"
LIBRARY = "@idempotent on Valkey"
DATABASE_URL = "BENCH_DATABASE_URL"
LIBRARY_ON_POSTGRES = "@idempotent on PostgreSQL"


def make_powertools_new_call(number: int) -> Call:
    """Return a call of a function behind Powertools, with a new key each time."""
    return _first_calls(_powertools(), f"p_{os.getpid()}_{number}")


def make_powertools_replay_call(number: int) -> Call:
    """Return a call of a function behind Powertools, with a known key each time."""
    return _repeated_calls(_powertools(), f"p_{os.getpid()}_{number}")


def make_library_new_call(number: int) -> Call:
    """Return a call of a function behind our library's Redis store, with a new key each time."""
    return _first_calls(_library(), f"l_{os.getpid()}_{number}")


def make_library_replay_call(number: int) -> Call:
    """Return a call of a function behind our library's Redis store, with a known key each time."""
    return _repeated_calls(_library(), f"l_{os.getpid()}_{number}")


def make_postgres_new_call(number: int) -> Call:
    """Return a call of a function behind our library's PostgreSQL store, with a new key each time."""
    return _first_calls(_library_on_postgres(), f"g_{os.getpid()}_{number}")


def make_postgres_replay_call(number: int) -> Call:
    """Return a call of a function behind our library's PostgreSQL store, with a known key each time."""
    return _repeated_calls(_library_on_postgres(), f"g_{os.getpid()}_{number}")


def _powertools() -> Work:
    """Return a function behind Powertools, configured for speed: the payload is only the key, so hashing is cheap."""
    from aws_lambda_powertools.utilities.idempotency import (  # noqa: PLC0415 - imported only by its own clients
        IdempotencyConfig,
        idempotent_function,
    )
    from aws_lambda_powertools.utilities.idempotency.persistence.cache import (  # noqa: PLC0415 - as above
        CachePersistenceLayer,
    )

    runs = itertools.count()
    config = IdempotencyConfig(expires_after_seconds=86_400, lambda_context=_Context())  # type: ignore[arg-type]
    store = CachePersistenceLayer(client=_valkey())  # type: ignore[arg-type]

    def run(*, key: str) -> dict[str, Any]:
        return {"key": key, "run": next(runs)}

    work = idempotent_function(run, data_keyword_argument="key", config=config, persistence_store=store)
    return lambda key: work(key=key)


def _valkey() -> Redis:
    """Return the Valkey client, which is the same for both libraries."""
    return Redis.from_url(os.environ[VALKEY_URL], decode_responses=True)


class _Context:
    """Lambda context for Powertools, which needs the remaining time to expire a claim."""

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


def _library() -> Work:
    from grantwire_idempotency import RedisStore  # noqa: PLC0415 - as above

    return _guarded(RedisStore(_valkey(), prefix="bench:"))


def _library_on_postgres() -> Work:
    from grantwire_idempotency import PostgresStore  # noqa: PLC0415 - as above

    return _guarded(PostgresStore(os.environ[DATABASE_URL]))


def _guarded(store: Store) -> Work:
    """Return a function behind our library, without metrics: Powertools writes none either."""
    from grantwire_idempotency import NoMetrics, idempotent  # noqa: PLC0415 - as above

    runs = itertools.count()

    @idempotent(store, key=lambda key: key, name="bench", metrics=NoMetrics())
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
    """Run the work once for each key, and return a call that checks that a known key does not run it again."""
    known = [(key, work(key)) for key in (f"{prefix}_{turn}" for turn in range(KEYS_PER_CLIENT))]
    turns = itertools.cycle(known)

    def call() -> None:
        key, result = next(turns)
        assert work(key) == result

    return call


_REMARKS = (
    (
        "The other comparisons are in the table above and in the section of each path. "
        "The alternatives do not all give the same guarantees:"
    ),
    (
        "*Statement by statement* gives every guarantee of a grant, with the same tables and in one transaction, but "
        "in nine round trips. It is called with plain values: unlike Grantwire's handler, it parses no request and "
        f"writes no log line. Its relay claims {CLAIM_SIZE} events at a time, and publishes and marks one after the "
        f"other. Its bridge fetches {FETCH_SIZE} messages at a time, and records and acknowledges one after the other, "
        "each in its own transaction. Both use nats-py as its documentation shows it."
    ),
    (
        "*Powertools* guarantees less than a grant. It claims a key in one call and saves the result in another call "
        "after the effect. If the process dies between the two calls, the effect has happened but is not recorded. "
        "The Valkey of this benchmark stores nothing on disk, and a replicated Valkey may lose its last writes in a "
        "failover. A grant is on disk before the caller gets its response. The function behind the key does nothing, "
        "while a grant changes an entitlement and writes an event and an audit row."
    ),
    (
        "*@idempotent* is Grantwire's idempotency library on the same Valkey, with the same client and the same kind "
        "of guarantee as Powertools, and without metrics and fencing numbers, as Powertools. On PostgreSQL, a new key "
        "is two commits."
    ),
    (
        "*pgqueuer* is a job queue whose jobs do nothing. It keeps no order within an aggregate, publishes and "
        "acknowledges no message, and its jobs are not committed together with another change. One worker claims "
        f"{BATCH_SIZE:,} jobs at a time. It is timed from its first claim to the end of its last job."
    ),
)


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Compare our library with Powertools, for new keys and for known keys."""
    new = {
        LIBRARY: make_library_new_call,
        POWERTOOLS: make_powertools_new_call,
        LIBRARY_ON_POSTGRES: make_postgres_new_call,
    }
    known = {
        LIBRARY: make_library_replay_call,
        POWERTOOLS: make_powertools_replay_call,
        LIBRARY_ON_POSTGRES: make_postgres_replay_call,
    }
    findings = []
    for title, works in (("new key", new), ("known key", known)):
        rounds = _compare(servers, effort, progress, title, works)
        findings += [
            Finding.compare(rounds, LIBRARY, POWERTOOLS, f", {title}", target=NOT_SLOWER),
            Finding.compare(rounds, LIBRARY_ON_POSTGRES, POWERTOOLS, f", {title}"),
        ]
    return Section("Peers", findings=findings, remarks=list(_REMARKS))


def _compare(
    servers: Servers, effort: Effort, progress: Progress, title: str, works: Mapping[str, Callable[[int], Call]]
) -> Rounds:
    database = servers.database()
    with ExitStack() as stack:
        contenders: dict[str, Callable[[], float]] = {}
        for name, work in works.items():
            environ = {VALKEY_URL: servers.valkey.url, DATABASE_URL: database}
            fleet = stack.enter_context(Fleet(f"{__name__}:{work.__name__}", effort.callers, environ))
            contenders[name] = partial(fleet.measure_rate, effort.seconds)
        return run_rounds(title, effort.rounds, contenders, progress)
