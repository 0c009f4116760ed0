"""One run of the sweep: checks and months first, which are quick, then the policies in turn while time is left (R4)."""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from grantwire.errors import GrantwireError, RetryableError
from grantwire.observability import MetricUnit, log, metrics
from grantwire.retention.checks import promote_stuck, report_forgotten
from grantwire.retention.partitions import drop_oldest_month, empty_default, ensure_months
from grantwire.retention.policies import delete_batch, policies

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from grantwire.database import Connection, Database
    from grantwire.retention.settings import RetentionSettings
    from grantwire.workers.budget import Budget

T = TypeVar("T")

_PING = "SELECT 1"


class Sweep:
    """Deletes what is past its time; any number may run at once."""

    def __init__(self, database: Database, settings: RetentionSettings) -> None:
        self._database = database
        self._settings = settings

    def run(self, budget: Budget, now: datetime | None = None) -> dict[str, Any]:
        """Sweep until all is done or the budget ends; the next run goes on from there.

        A step that fails does not keep the others from their work; the first failure is raised at the end.
        """
        self._database.fetch_row(_PING, {})
        failures: list[GrantwireError] = []
        result = {
            "stuck": self._step(promote_stuck, failures),
            "forgotten": self._step(lambda tx: report_forgotten(tx, self._settings, now), failures)
            if self._settings.notifications
            else 0,
            "in_default": self._step(empty_default, failures),
            "months_made": self._step(lambda tx: ensure_months(tx, now), failures),
            "months_dropped": self._drop_months(budget, failures, now),
            **self._delete(budget, failures, now),
        }
        if failures:
            log.error("sweep is incomplete", result=result, failures=[str(failure) for failure in failures])
            raise failures[0]
        return result

    def close(self) -> None:
        """Give the connection back."""
        self._database.close()

    def _step(self, step: Callable[[Connection], T], failures: list[GrantwireError]) -> T | None:
        """One transaction of its own."""
        try:
            with self._database.session() as connection, connection.transaction():
                return step(connection)
        except GrantwireError as failure:
            failures.append(failure)
            return None

    def _drop_months(self, budget: Budget, failures: list[GrantwireError], now: datetime | None) -> list[str]:
        """Month by month. One that is in use stays until the next run, which is no failure."""
        dropped: list[str] = []
        months = self._settings.audit_months
        before = len(failures)
        while months is not None and not budget.over():
            name = self._step(partial(drop_oldest_month, months=months, now=now), failures)
            if name is None:
                break
            log.info("a month of the audit is dropped", partition=name, keep_months=months)
            dropped.append(name)
        if failures[before:] and isinstance(failures[-1], RetryableError):
            log.warning("a month of the audit is dropped another time", reason=str(failures.pop()))
        return dropped

    def _delete(self, budget: Budget, failures: list[GrantwireError], now: datetime | None) -> dict[str, Any]:
        """Batch by batch, the policies in turn, so that a large backlog of one does not keep the others waiting."""
        deleted: Counter[str] = Counter()
        batches: Counter[str] = Counter()
        turns = deque(policies(self._settings))
        while turns and not budget.over():
            policy = turns.popleft()
            count = self._step(partial(delete_batch, policy=policy, settings=self._settings, now=now), failures)
            if count:
                deleted[policy.name] += count
                batches[policy.name] += 1
            if count == self._settings.batch_size:
                turns.append(policy)
        if deleted:
            metrics.add_metric("RowsSwept", MetricUnit.Count, deleted.total())
        return {"deleted": dict(deleted), "batches": dict(batches), "complete": not turns}
