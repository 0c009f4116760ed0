"""One run of the sweep: checks and months first, which are quick, then the policies in turn while time is left (R4)."""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from grantwire.errors import GrantwireError, RetryableError
from grantwire.observability import logger
from grantwire.retention.checks import promote_stuck, report_forgotten
from grantwire.retention.partitions import drop_oldest_month, empty_default, ensure_months
from grantwire.retention.policies import delete_batch, policies
from grantwire.workers.loop import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from grantwire.database import Connection, Database
    from grantwire.retention.policies import Policy
    from grantwire.retention.settings import RetentionSettings
    from grantwire.workers.budget import Budget

    # One task of a run; true if it is to be repeated after the others have had their turn.
    Task = Callable[[], bool]

T = TypeVar("T")

_PING = "SELECT 1"


class Sweep(Worker):
    """Deletes what is past its time; any number may run at once. `now` is None in production: the database's time."""

    name = "sweep_retention"
    counters: ClassVar[Mapping[str, str | None]] = {"swept": "RowsSwept"}
    stops_when_idle = True

    def __init__(self, database: Database, settings: RetentionSettings, now: datetime | None = None) -> None:
        super().__init__()
        self._database = database
        self._settings = settings
        self._now = now
        self._tasks: deque[Task] = deque()
        self._reached = False
        self._found: dict[str, Any] = {}
        self._deleted: Counter[str] = Counter()
        self._batches: Counter[str] = Counter()
        self._failures: list[GrantwireError] = []

    async def begin(self) -> None:
        """List the tasks of a run: the checks, the months of the audit, the policies."""
        self._reached = False
        self._failures = []
        self._deleted, self._batches = Counter(), Counter()
        self._found = {"stuck": 0, "forgotten": 0, "in_default": 0, "months_made": [], "months_dropped": []}
        self._tasks = deque([partial(self._check, "stuck", promote_stuck)])
        if self._settings.notifications:
            report = partial(report_forgotten, settings=self._settings, now=self._now)
            self._tasks.append(partial(self._check, "forgotten", report))
        self._tasks.append(partial(self._check, "in_default", empty_default))
        self._tasks.append(partial(self._check, "months_made", partial(ensure_months, now=self._now)))
        self._tasks.append(self._drop_month)
        self._tasks.extend(partial(self._delete, policy) for policy in policies(self._settings))

    async def step(self, budget: Budget) -> bool:  # noqa: ARG002 - one task is short
        """Run the next task, in a transaction of its own; false when none is left.

        A task that fails does not keep the others from their work; the first failure is raised at the end of the run.
        """
        if not self._reached:
            self._database.fetch_row(_PING, {})
            self._reached = True
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
        """What was found and deleted; `complete` if nothing is left for the next run. Raises the first failure."""
        deleted = {"deleted": dict(self._deleted), "batches": dict(self._batches), "complete": not self._tasks}
        result = self._found | deleted
        if self._failures:
            logger.error("sweep incomplete", result=result, failures=[str(failure) for failure in self._failures])
            raise self._failures[0]
        return result

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _run(self, action: Callable[[Connection], T]) -> T:
        with self._database.session() as tx, tx.transaction():
            return action(tx)

    def _check(self, name: str, check: Callable[[Connection], Any]) -> bool:
        self._found[name] = None
        self._found[name] = self._run(check)
        return False

    def _drop_month(self) -> bool:
        """Drop the oldest month of the audit. One that is in use stays until the next run, which is no failure."""
        months = self._settings.audit_months
        if months is None:
            return False
        try:
            name = self._run(partial(drop_oldest_month, months=months, now=self._now))
        except RetryableError as error:
            logger.warning("could not drop audit partition, retrying next run", reason=str(error))
            return False
        if name is None:
            return False
        logger.info("audit partition dropped", partition=name, keep_months=months)
        self._found["months_dropped"].append(name)
        return True

    def _delete(self, policy: Policy) -> bool:
        """Delete one batch; policies take turns, so that a large backlog of one does not keep the others waiting."""
        count = self._run(partial(delete_batch, policy=policy, settings=self._settings, now=self._now))
        if count:
            self._deleted[policy.name] += count
            self._batches[policy.name] += 1
            self.counts["swept"] += count
        return count == self._settings.batch_size
