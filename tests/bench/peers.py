"""Other ways to remember that something was done, beside ours: Powertools, and our own library on the same Valkey.

What a fleet calls takes the client's number and returns a call that looks at its own result, as in `callers`.
"""

from __future__ import annotations

import itertools
import os
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from redis import Redis

from tests.bench.callers import KEPT_KEYS, VALKEY_URL
from tests.bench.fleet import Fleet
from tests.bench.job_queue import BATCH
from tests.bench.naive import CLAIM, FETCH
from tests.bench.results import Finding, Section
from tests.bench.rounds import interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.rounds import Rounds
    from tests.bench.servers import Servers

    Call = Callable[[], None]
    Work = Callable[[str], dict[str, Any]]

POWERTOOLS = "Powertools on Valkey"
LIBRARY = "@idempotent on Valkey"


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
    store = CachePersistenceLayer(client=_valkey())  # type: ignore[arg-type]

    def run(*, key: str) -> dict[str, Any]:
        return {"key": key, "run": next(runs)}

    work = idempotent_function(run, data_keyword_argument="key", config=config, persistence_store=store)
    return lambda key: work(key=key)


def _valkey() -> Redis:
    """The same client for both."""
    return Redis.from_url(os.environ[VALKEY_URL], decode_responses=True)


class _Context:
    """What Powertools asks of Lambda's context; without one it cannot tell when a claim ends."""

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


def _library() -> Work:
    from grantwire_idempotency import RedisStore, idempotent  # noqa: PLC0415 - as above

    runs = itertools.count()

    @idempotent(RedisStore(_valkey(), prefix="bench:"), key=lambda key: key, name="bench")
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


_REMARKS = (
    "The other peers stand beside what they are compared with: in the table, or with the section of their path.",
    (
        "*Statement by statement* keeps every promise that a grant keeps, with the same tables and in one transaction, "
        "in nine round trips. It is called with plain values: it parses no request and writes no log line, which is "
        f"part of ours. Its relay claims {CLAIM} events at a time, publishes each and marks it before the next. Its "
        f"bridge fetches {FETCH} messages at a time, and records each in a transaction of its own and acknowledges it "
        "before the next. Both use nats-py as its documentation shows it."
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
        "contract as Powertools. Each of its calls also writes two lines of metrics, which Powertools does not."
    ),
    (
        "*pgqueuer* is a queue of jobs that do nothing: there is no order within an aggregate, no message that is "
        "published and acknowledged, and no change that a job was committed with. One worker takes "
        f"{BATCH:,} at a time and is timed from its first claim to its last job's end."
    ),
)


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """The library against Powertools, for keys that are new and keys that are known."""
    new = {LIBRARY: library_new, POWERTOOLS: powertools_new}
    known = {LIBRARY: library_replay, POWERTOOLS: powertools_replay}
    findings = [
        Finding.against(_compared(servers, effort, progress, title, works), LIBRARY, POWERTOOLS, f", {title}")
        for title, works in (("new key", new), ("known key", known))
    ]
    return Section("Peers", findings=findings, remarks=list(_REMARKS))


def _compared(
    servers: Servers, effort: Effort, progress: Progress, title: str, works: Mapping[str, Callable[[int], Call]]
) -> Rounds:
    with ExitStack() as stack:
        contenders: dict[str, Callable[[], float]] = {}
        for name, work in works.items():
            environ = {VALKEY_URL: servers.valkey.url}
            fleet = stack.enter_context(Fleet(f"{__name__}:{work.__name__}", effort.callers, environ))
            contenders[name] = partial(fleet.rate, effort.seconds)
        return interleave(title, effort.rounds, contenders, progress)
