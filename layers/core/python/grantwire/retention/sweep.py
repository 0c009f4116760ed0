"""The worker that deletes rows past their retention.

A run begins with the checks and the partitions of the audit, which are fast. Then the policies, and the check of the
read model page by page, take turns until all are done or the budget ends (R4).
"""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from grantwire.errors import GrantwireError, RetryableError
from grantwire.observability import logger
from grantwire.retention.checks import (
    compare_read_model,
    promote_stuck_events,
    report_kept_events,
    report_unfinished_notifications,
)
from grantwire.retention.partitions import drop_oldest_partition, empty_default_partition, ensure_partitions
from grantwire.retention.policies import delete_batch, enabled_policies
from grantwire.workers.loop import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from uuid import UUID

    from grantwire.database import Connection, Database
    from grantwire.retention.policies import Policy
    from grantwire.retention.settings import RetentionSettings
    from grantwire.workers.budget import Budget

    # One task of a run. It returns true if it must run again, after the other tasks.
    Task = Callable[[], bool]

T = TypeVar("T")

_PING = "SELECT 1"
# Before the first row of the read model.
_FIRST = ("", "")
# Rows that are compared in one statement.
_READ_MODEL_PAGE_SIZE = 10_000


class Sweep(Worker):
    """Deletes rows past their retention. Several sweeps may run at the same time.

    `now` is None in production, which means the time of the database; tests pass a time.
    """

    name = "sweep_retention"
    counters: ClassVar[Mapping[str, str | None]] = {"swept": "RowsSwept"}
    stops_when_idle = True

    def __init__(self, database: Database, settings: RetentionSettings, now: datetime | None = None) -> None:
        super().__init__()
        self._database = database
        self._settings = settings
        self._now = now
        self._tasks: deque[Task] = deque()
        self._is_connected = False
        self._findings: dict[str, Any] = {}
        self._deleted: Counter[str] = Counter()
        self._batches: Counter[str] = Counter()
        # Of policies with rows that stay: the last row that was read in this run.
        self._last: dict[str, tuple[datetime, UUID]] = {}
        self._failures: list[GrantwireError] = []
        # The last row of the read model that was checked. If a run ends early, the next one continues there.
        self._checked = _FIRST

    async def begin(self) -> None:
        """Queue the tasks of a run: the checks, the partitions of the audit, the policies."""
        self._is_connected = False
        self._failures = []
        self._last = {}
        self._deleted, self._batches = Counter(), Counter()
        self._findings = {
            "stuck": 0,
            "forgotten": 0,
            "kept": 0,
            "in_default": 0,
            "ahead": 0,
            "behind": 0,
            "wrong": 0,
            "months_made": [],
            "months_dropped": [],
        }
        self._tasks = deque([partial(self._check, "stuck", promote_stuck_events)])
        if self._settings.notifications_enabled:
            report = partial(report_unfinished_notifications, settings=self._settings, now=self._now)
            self._tasks.append(partial(self._check, "forgotten", report))
        kept = partial(report_kept_events, settings=self._settings, now=self._now)
        self._tasks.append(partial(self._check, "kept", kept))
        self._tasks.append(partial(self._check, "in_default", empty_default_partition))
        self._tasks.append(partial(self._check, "months_made", partial(ensure_partitions, now=self._now)))
        self._tasks.append(self._drop_partition)
        self._tasks.append(self._check_read_model)
        self._tasks.extend(partial(self._delete_batch, policy) for policy in enabled_policies(self._settings))

    async def step(self, budget: Budget) -> bool:  # noqa: ARG002 - one task is short
        """Run the next task in a transaction of its own. Return false if no task is left.

        If a task fails, the others still run. `result` raises the first failure.
        """
        if not self._is_connected:
            # An unavailable database is one error, not one for each task.
            self._database.fetch_row(_PING, {})
            self._is_connected = True
        if not self._tasks:
            return False
        task = self._tasks.popleft()
        try:
            if task():
                self._tasks.append(task)
        except GrantwireError as failure:
            self._failures.append(failure)
        return True

    def result(self) -> dict[str, Any]:
        """Return what the run found and deleted, or raise the first failure.

        `complete` is true if nothing is left for the next run.
        """
        deleted = {"deleted": dict(self._deleted), "batches": dict(self._batches), "complete": not self._tasks}
        result = self._findings | deleted
        if self._failures:
            logger.error("sweep incomplete", result=result, failures=[str(failure) for failure in self._failures])
            raise self._failures[0]
        return result

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _run_in_transaction(self, action: Callable[[Connection], T]) -> T:
        with self._database.session() as tx, tx.transaction():
            return action(tx)

    def _check(self, name: str, check: Callable[[Connection], Any]) -> bool:
        self._findings[name] = None
        self._findings[name] = self._run_in_transaction(check)
        return False

    def _check_read_model(self) -> bool:
        """Check one page of the read model; return false after the last one."""
        page = self._run_in_transaction(partial(compare_read_model, after=self._checked, limit=_READ_MODEL_PAGE_SIZE))
        for difference in ("ahead", "behind", "wrong"):
            self._findings[difference] += getattr(page, difference)
        self._checked = page.last or _FIRST
        return page.last is not None

    def _drop_partition(self) -> bool:
        """Drop the oldest audit partition. A partition that is in use stays until the next run; this is no failure."""
        months = self._settings.audit_months
        if months is None:
            return False
        try:
            name = self._run_in_transaction(partial(drop_oldest_partition, months=months, now=self._now))
        except RetryableError as error:
            logger.warning("could not drop audit partition, retrying next run", reason=str(error))
            return False
        if name is None:
            return False
        logger.info("audit partition dropped", partition=name, keep_months=months)
        self._findings["months_dropped"].append(name)
        return True

    def _delete_batch(self, policy: Policy) -> bool:
        """Delete one batch. Policies take turns, so that a large backlog of one does not delay the others."""
        delete = partial(
            delete_batch, policy=policy, settings=self._settings, now=self._now, after=self._last.get(policy.name)
        )
        batch = self._run_in_transaction(delete)
        if batch.deleted:
            self._deleted[policy.name] += batch.deleted
            self._batches[policy.name] += 1
            self.counts["swept"] += batch.deleted
        if batch.last is not None:
            self._last[policy.name] = batch.last
        return batch.read == self._settings.batch_size
