"""Leases: rows that one worker has claimed for a while (O2, D1).

A claim has a token that no other claim has, `<worker>/<uuid>`. Every later statement names the token and the state and
counts the rows that it changed: fewer than expected means that the lease ran out and another worker has the rows. Then
the worker stops and touches nothing else (LeaseLostError). The SQL is in the table's own store; this module is the
protocol around it: claim, renew, complete, fail, release.

Time is the database's: `now` is None in production and a fixed time in tests. Randomness is passed in.
"""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from grantwire.errors import LeaseLostError, RetryableError
from grantwire.observability import MetricUnit, logger, metrics
from grantwire.settings import duration, integer, number, setting
from grantwire.workers.isolation import write_isolated
from grantwire.workers.loop import reconnect_delays
from grantwire_idempotency.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from grantwire.database import Connection
    from grantwire.workers.budget import Budget

# After the end of the budget, how long an outcome is still tried to be written; an invocation keeps five seconds.
_LAST_SECONDS = 4.5

Item = TypeVar("Item")
R = TypeVar("R")


def worker_name(environ: Mapping[str, str]) -> str:
    """What people search for in `locked_by`: the Lambda log stream, else HOSTNAME, else the host's name."""
    return environ.get("AWS_LAMBDA_LOG_STREAM_NAME") or environ.get("HOSTNAME") or socket.gethostname()


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """How work is claimed, kept and retried: `ENTITLEMENT_OUTBOX_LEASE`, `NOTIFICATION_DELIVERY_LEASE` and so on."""

    poll_interval: timedelta = setting("POLL_INTERVAL", duration(low="10ms", high="1m"), default="200ms")
    batch_size: int = setting("BATCH_SIZE", integer(low=1, high=1000), default="200")
    lease: timedelta = setting("LEASE", duration(low="1s", high="1h"), default="30s")
    max_attempts: int = setting("MAX_ATTEMPTS", integer(low=1, high=1000), default="10")
    backoff_base: timedelta = setting("BACKOFF_BASE", duration(low="1ms", high="1h"), default="1s")
    backoff_max: timedelta = setting("BACKOFF_MAX", duration(low="1ms", high="24h"), default="60s")
    backoff_min: timedelta = setting("BACKOFF_MIN", duration(low="0s", high="1h"), default="0s")
    backoff_jitter_min: float = setting("BACKOFF_JITTER_MIN", number(low=0, high=10), default="0.5")
    backoff_jitter_max: float = setting("BACKOFF_JITTER_MAX", number(low=0, high=10), default="1.5")

    def problems(self) -> Iterator[str]:
        """Bounds must be in order."""
        if self.backoff_jitter_min > self.backoff_jitter_max:
            yield "BACKOFF_JITTER_MIN must not exceed BACKOFF_JITTER_MAX"
        if self.backoff_min > self.backoff_max:
            yield "BACKOFF_MIN must not exceed BACKOFF_MAX"
        if self.backoff_base > self.backoff_max:
            yield "BACKOFF_BASE must not exceed BACKOFF_MAX"

    @property
    def backoff(self) -> Backoff:
        """How long to wait after a failure."""
        return Backoff(
            self.backoff_base, self.backoff_max, self.backoff_min, self.backoff_jitter_min, self.backoff_jitter_max
        )


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """The attempts made so far, and when to try again; None means never (FAILED)."""

    attempt_count: int
    retry_after: timedelta | None

    @property
    def is_final(self) -> bool:
        """Whether it is not tried again."""
        return self.retry_after is None


def decide_retry(
    settings: LeaseSettings, attempts_before: int, rand: Callable[[], float], *, permanent: bool = False
) -> RetryDecision:
    """Decide after one more failed attempt: a permanent failure, or the last attempt, is not retried (O5)."""
    attempts = attempts_before + 1
    if permanent or attempts >= settings.max_attempts:
        return RetryDecision(attempts, None)
    return RetryDecision(attempts, settings.backoff.delay(attempts, rand))


class Failure(NamedTuple):
    """A row whose work failed: what is decided about it, and why it failed."""

    id: Any
    decision: RetryDecision
    reason: str


class LeasedTable(Protocol[Item]):
    """The SQL of a table whose rows are leased.

    Every statement after the claim changes only rows that carry the token and are still in the claimed state, and
    returns how many it changed.
    """

    def claim(self, tx: Connection, token: str, *, limit: int, lease: timedelta, now: datetime | None) -> list[Item]:
        """Claim up to `limit` rows that are due; taking over an expired lease counts as a failed attempt."""

    def id_of(self, item: Item) -> Any:
        """The key of a claimed row."""

    def renew(self, tx: Connection, token: str, ids: Sequence[Any], *, lease: timedelta, now: datetime | None) -> int:
        """Keep rows for another lease."""

    def complete(self, tx: Connection, token: str, ids: Sequence[Any], *, now: datetime | None) -> int:
        """Mark rows as done."""

    def fail(self, tx: Connection, token: str, failures: Sequence[Failure], *, now: datetime | None) -> int:
        """Put rows off or give them up, each as decided."""

    def release(self, tx: Connection, token: str, ids: Sequence[Any]) -> int:
        """Give rows back as they were."""


class Lease(Generic[Item]):
    """What one claim holds. Each outcome that is written makes it smaller; it is renewed as a whole."""

    def __init__(
        self,
        table: LeasedTable[Item],
        settings: LeaseSettings,
        worker: str,
        clock: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self._table = table
        self._settings = settings
        self._clock = clock
        self._expires_at = 0.0
        self.token = f"{worker}/{uuid.uuid4()}"
        self.held: dict[Any, Item] = {}

    def claim(self, tx: Connection, limit: int | None = None) -> list[Item]:
        """Claim up to `limit` rows that are due; by default a batch."""
        self._expires_at = time.monotonic() + self._settings.lease.total_seconds()
        items = self._table.claim(
            tx,
            self.token,
            limit=self._settings.batch_size if limit is None else limit,
            lease=self._settings.lease,
            now=self._clock(),
        )
        self.held = {self._table.id_of(item): item for item in items}
        return items

    @property
    def should_renew(self) -> bool:
        """Whether a third of the lease has passed."""
        return time.monotonic() > self._expires_at - 2 * self._settings.lease.total_seconds() / 3

    def renew(self, tx: Connection) -> None:
        """Keep everything that is held for another lease, or nothing: LeaseLostError if any of it is no longer ours."""
        ids = list(self.held)
        expires_at = time.monotonic() + self._settings.lease.total_seconds()
        with tx.transaction():
            changed = self._table.renew(tx, self.token, ids, lease=self._settings.lease, now=self._clock())
            ensure_claim_held(changed, len(ids), "renew")
        self._expires_at = expires_at

    def complete(self, tx: Connection, ids: Sequence[Any]) -> list[Any]:
        """Mark rows as done; those that could be. LeaseLostError, after the rest was marked, if some were not ours."""
        now = self._clock()
        return self._write(tx, ids, "complete", lambda some: self._table.complete(tx, self.token, some, now=now))

    def fail(self, tx: Connection, failures: Sequence[Failure]) -> list[Any]:
        """Put failed rows off or give them up, each as decided; else as `complete`."""
        by_id = {failure.id: failure for failure in failures}

        def write(some: Sequence[Any]) -> int:
            return self._table.fail(tx, self.token, [by_id[one] for one in some], now=self._clock())

        return self._write(tx, list(by_id), "fail", write)

    def release(self, tx: Connection, ids: Sequence[Any] | None = None) -> list[Any]:
        """Give rows back as they were, which costs no attempt: these, or all that is held; else as `complete`."""
        chosen = list(self.held) if ids is None else ids
        return self._write(tx, chosen, "release", lambda some: self._table.release(tx, self.token, some))

    async def persist(
        self,
        run: Callable[[Callable[[Connection], R]], Awaitable[R]],
        change: Callable[[Connection], R],
        budget: Budget,
    ) -> R:
        """Write an outcome, through a short absence of PostgreSQL too, for as long as the lease lasts.

        What was done and is not recorded would be done again. `run` runs `change` on a connection.
        """
        delays = reconnect_delays()
        while True:
            try:
                return await run(change)
            except LeaseLostError:
                raise
            except RetryableError:
                if time.monotonic() >= self._expires_at or budget.overrun() >= _LAST_SECONDS:
                    raise
                await asyncio.sleep(next(delays))

    def _write(self, tx: Connection, ids: Sequence[Any], what: str, write: Callable[[Sequence[Any]], int]) -> list[Any]:
        """Write an outcome; a row that PostgreSQL refuses does not hold back the others, its lease runs out."""
        if not ids:
            return []
        written = write_isolated(tx, ids, write)
        for fault in written.faults:
            logger.error("could not write outcome", action=what, id=str(fault.item), reason=fault.reason)
        for one in ids:
            self.held.pop(one, None)
        refused = {fault.item for fault in written.faults}
        done = [one for one in ids if one not in refused]
        ensure_claim_held(written.result or 0, len(done), what)
        return done


def ensure_claim_held(changed: int, expected: int, action: str) -> None:
    """Stop a worker whose lease ran out before its statement arrived: LeaseLostError."""
    if changed < expected:
        metrics.add_metric("LeasesLost", MetricUnit.Count, expected - changed)
        logger.error("lease lost", action=action, expected=expected, changed=changed)
        raise LeaseLostError(f"{action}: {changed} of {expected} rows were still ours")
