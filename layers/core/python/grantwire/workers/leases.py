"""Leases: rows that one worker has claimed for a limited time (O2, D1).

Each claim has a unique token, `<worker>/<uuid>`. Every later statement changes only rows with this token and counts
them. If it changed fewer rows than expected, the lease has expired and another worker may have the rows. The worker
then raises LeaseLostError and changes nothing else. The SQL is in the store module of each table; this module
implements the protocol: claim, renew, complete, fail, release.

The database clock decides: `now` is None in production and a fixed time in tests. Randomness is a parameter.
"""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from grantwire.errors import LeaseLostError, RetryableError
from grantwire.observability import MetricUnit, logger, metrics
from grantwire.settings import duration, integer, number, setting
from grantwire.workers.isolation import write_isolated
from grantwire.workers.loop import reconnect_delays
from grantwire_idempotency import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from grantwire.database import Connection
    from grantwire.workers.budget import Budget

# How long after the deadline `persist` still retries. Must be below the shutdown reserve of 5 s in `budget`.
_PERSIST_OVERRUN_SECONDS = 4.5

Item = TypeVar("Item")
R = TypeVar("R")
Row = TypeVar("Row", bound="Failure | Completion")


def worker_name(environ: Mapping[str, str]) -> str:
    """Return the name of this worker in `locked_by`: the Lambda log stream, else HOSTNAME, else the host name.

    With the log stream, an operator finds the log lines of the worker that holds a row.
    """
    return environ.get("AWS_LAMBDA_LOG_STREAM_NAME") or environ.get("HOSTNAME") or socket.gethostname()


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Claims and retries of one table. The variables have a prefix, for example `ENTITLEMENT_OUTBOX_LEASE`."""

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
        """Yield a problem for each lower bound that exceeds its upper bound."""
        if self.backoff_jitter_min > self.backoff_jitter_max:
            yield "BACKOFF_JITTER_MIN must not exceed BACKOFF_JITTER_MAX"
        if self.backoff_min > self.backoff_max:
            yield "BACKOFF_MIN must not exceed BACKOFF_MAX"
        if self.backoff_base > self.backoff_max:
            yield "BACKOFF_BASE must not exceed BACKOFF_MAX"

    @property
    def backoff(self) -> Backoff:
        """The backoff between attempts."""
        return Backoff(
            self.backoff_base, self.backoff_max, self.backoff_min, self.backoff_jitter_min, self.backoff_jitter_max
        )


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """The number of failed attempts and the delay before the next one; None means no retry (FAILED)."""

    attempt_count: int
    retry_after: timedelta | None

    @property
    def is_final(self) -> bool:
        """Whether there is no further attempt."""
        return self.retry_after is None

    def not_before(self, delay: timedelta) -> RetryDecision:
        """Return the decision with a longer delay, if it has a shorter one; a final decision stays final."""
        return self if self.retry_after is None else RetryDecision(self.attempt_count, max(self.retry_after, delay))


def decide_retry(
    settings: LeaseSettings, attempts_before: int, rand: Callable[[], float], *, permanent: bool = False
) -> RetryDecision:
    """Decide whether a failed attempt is retried: not after a permanent failure or the last attempt (O5)."""
    attempts = attempts_before + 1
    if permanent or attempts >= settings.max_attempts:
        return RetryDecision(attempts, None)
    return RetryDecision(attempts, settings.backoff.delay(attempts, rand))


class Failure(NamedTuple):
    """The failed attempt of a row: the retry decision and the reason of the failure."""

    id: Any
    decision: RetryDecision
    reason: str


class Completion(NamedTuple):
    """A row whose work is done, and what the other side returned: kept as evidence, where the table has a column."""

    id: Any
    evidence: Any = None


class LeasedTable(Protocol[Item]):
    """The statements of a table whose rows are claimed.

    Every statement after the claim changes only rows that have the token and are still in the claimed state. It
    returns the number of changed rows.
    """

    def claim(self, tx: Connection, token: str, *, limit: int, lease: timedelta, now: datetime | None) -> list[Item]:
        """Claim up to `limit` rows that are due. Claiming a row with an expired lease counts as a failed attempt."""

    def get_id(self, item: Item) -> Any:
        """Return the primary key of a claimed row."""

    def renew(self, tx: Connection, token: str, ids: Sequence[Any], *, lease: timedelta, now: datetime | None) -> int:
        """Extend the lease of rows."""

    def complete(self, tx: Connection, token: str, completions: Sequence[Completion], *, now: datetime | None) -> int:
        """Mark rows as completed, each with its evidence."""

    def fail(self, tx: Connection, token: str, failures: Sequence[Failure], *, now: datetime | None) -> int:
        """Schedule the next attempt of each row, or mark it FAILED, as its retry decision says."""

    def release(self, tx: Connection, token: str, ids: Sequence[Any]) -> int:
        """Make rows available again, unchanged."""


class Lease(Generic[Item]):
    """The rows of one claim. Writing the outcome of a row removes it; the remaining rows are renewed together."""

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
        """Claim up to `limit` rows that are due, by default the batch size of the settings."""
        self._expires_at = time.monotonic() + self._settings.lease.total_seconds()
        items = self._table.claim(
            tx,
            self.token,
            limit=self._settings.batch_size if limit is None else limit,
            lease=self._settings.lease,
            now=self._clock(),
        )
        self.held = {self._table.get_id(item): item for item in items}
        return items

    def update(self, item: Item) -> None:
        """Replace a held row by its newer state, which the caller has written."""
        self.held[self._table.get_id(item)] = item

    @property
    def should_renew(self) -> bool:
        """Whether at least a third of the lease has passed."""
        return time.monotonic() > self._expires_at - 2 * self._settings.lease.total_seconds() / 3

    def renew(self, tx: Connection) -> None:
        """Extend the lease of all held rows; raise LeaseLostError and extend none if any of them is lost."""
        ids = list(self.held)
        expires_at = time.monotonic() + self._settings.lease.total_seconds()
        with tx.transaction():
            changed = self._table.renew(tx, self.token, ids, lease=self._settings.lease, now=self._clock())
            ensure_claim_held(changed, len(ids), "renew")
        self._expires_at = expires_at

    def complete(self, tx: Connection, completions: Sequence[Completion]) -> list[Any]:
        """Mark rows as completed and return the ids of those that PostgreSQL accepted.

        Raises LeaseLostError if some rows were lost; the others are marked nevertheless.
        """
        write = partial(self._table.complete, tx, self.token, now=self._clock())
        return self._write_outcome(tx, completions, "complete", write)

    def fail(self, tx: Connection, failures: Sequence[Failure]) -> list[Any]:
        """Schedule the next attempt of each row or mark it FAILED; otherwise like `complete`."""
        return self._write_outcome(tx, failures, "fail", partial(self._table.fail, tx, self.token, now=self._clock()))

    def release(self, tx: Connection, ids: Sequence[Any] | None = None) -> list[Any]:
        """Release rows without counting an attempt, by default all held rows; otherwise like `complete`."""
        rows = [Completion(row_id) for row_id in (list(self.held) if ids is None else ids)]
        return self._write_outcome(
            tx, rows, "release", lambda batch: self._table.release(tx, self.token, [row.id for row in batch])
        )

    async def persist(
        self,
        run: Callable[[Callable[[Connection], R]], Awaitable[R]],
        change: Callable[[Connection], R],
        budget: Budget,
    ) -> R:
        """Write an outcome, and retry while PostgreSQL is unavailable until the lease expires.

        Work whose outcome is not recorded would be repeated. `run` executes `change` on a connection.
        """
        delays = reconnect_delays()
        while True:
            try:
                return await run(change)
            except LeaseLostError:
                raise
            except RetryableError:
                if time.monotonic() >= self._expires_at or budget.overrun() >= _PERSIST_OVERRUN_SECONDS:
                    raise
                await asyncio.sleep(next(delays))

    def _write_outcome(
        self, tx: Connection, rows: Sequence[Row], action: str, write: Callable[[Sequence[Row]], int]
    ) -> list[Any]:
        """Write an outcome. A row that PostgreSQL rejects does not affect the others; its lease expires."""
        if not rows:
            return []
        written = write_isolated(tx, rows, write)
        for fault in written.faults:
            logger.error("could not write outcome", action=action, id=str(fault.item.id), reason=fault.reason)
        for row in rows:
            self.held.pop(row.id, None)
        rejected = {fault.item.id for fault in written.faults}
        accepted = [row.id for row in rows if row.id not in rejected]
        ensure_claim_held(written.result or 0, len(accepted), action)
        return accepted


def ensure_claim_held(changed: int, expected: int, action: str) -> None:
    """Raise LeaseLostError if a statement changed fewer rows than expected, because the lease had expired."""
    if changed < expected:
        metrics.add_metric("LeasesLost", MetricUnit.Count, expected - changed)
        logger.error("lease lost", action=action, expected=expected, changed=changed)
        raise LeaseLostError(f"{action}: {changed} of {expected} rows were still claimed")
