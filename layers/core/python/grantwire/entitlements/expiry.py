"""The worker that records starts, notices and ends of entitlements as events when their time comes (K4).

Reads do not depend on it: they compute the status from the times. Its transactions are bounded, so that a million
entitlements that end at once neither lock the table nor exceed a timeout. Each event is recorded exactly once, because
the row lock decides between workers and changes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from grantwire.errors import InternalError, SystemFaultError
from grantwire.observability import logger, trace_id_from_headers
from grantwire.settings import duration, integer, setting
from grantwire.workers.loop import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from grantwire.database import Database
    from grantwire.entitlements.settings import TimeSettings
    from grantwire.workers.budget import Budget

# The SQL function (infra/sql/functions/expire_due.sql) decides what is due, by the clock of the database.
RECORD_DUE = """
SELECT started, expiring, expired, failed, error, failed_of
  FROM expire_due(
         %(limit)s, %(grace)s, %(notice)s, %(trace_id)s, %(isolate)s, %(skip)s::integer[])
"""

# Each entitlement takes a subtransaction then, and there are three kinds of due times.
_ISOLATED_BATCH_SIZE = 20
# After so many failures, the cause is not in single entitlements: the worker waits between its attempts.
_MANY_FAILED = 500


@dataclass(frozen=True, slots=True)
class ExpirySettings:
    """How often the worker asks what is due, and how many entitlements of each kind one transaction records."""

    poll_interval: timedelta = setting(
        "ENTITLEMENT_EXPIRY_POLL_INTERVAL", duration(low="10ms", high="1m"), default="500ms"
    )
    batch_size: int = setting("ENTITLEMENT_EXPIRY_BATCH_SIZE", integer(low=1, high=5000), default="500")


class Expiry(Worker):
    """Records what is due, batch by batch, and then polls. Several of them may run at the same time."""

    name = "expire_entitlements"
    counters: ClassVar[Mapping[str, str | None]] = {
        "started": "EntitlementsStarted",
        "expiring": "EntitlementsExpiring",
        "expired": "EntitlementsExpired",
        "failed": "EntitlementTimesFailed",
    }

    def __init__(self, database: Database, times: TimeSettings, settings: ExpirySettings) -> None:
        super().__init__()
        self._database = database
        self._times = times
        self._settings = settings
        # How many of the starts, ends and notices that are due first have failed in this invocation.
        self._skip = [0, 0, 0]

    async def begin(self) -> None:
        """Try those again that failed in the last invocation."""
        self._skip = [0, 0, 0]

    async def step(self, budget: Budget) -> bool:  # noqa: ARG002 - a batch is short; the loop checks the budget
        """Record one batch; return false if nothing was due.

        If PostgreSQL refuses the events of an entitlement, the due entitlements are recorded one by one, so that it
        does not hold back the others. It is counted as failed and tried again by the next invocation.
        """
        try:
            return await asyncio.to_thread(self._record, self._settings.batch_size, isolate=False)
        except SystemFaultError:
            raise
        except InternalError as error:
            logger.warning("batch refused, recording entitlements one by one", reason=str(error))
            return await asyncio.to_thread(self._record, _ISOLATED_BATCH_SIZE, isolate=True)

    async def wait(self, seconds: float) -> None:
        """Wait for the poll interval."""
        await asyncio.sleep(min(self._settings.poll_interval.total_seconds(), seconds))

    def _record(self, limit: int, *, isolate: bool) -> bool:
        parameters = {
            "limit": limit,
            "grace": self._times.grace_interval,
            "notice": self._times.notice_interval,
            "trace_id": trace_id_from_headers(),
            "isolate": isolate,
            "skip": self._skip,
        }
        started, expiring, expired, failed, error, failed_of = self._database.fetch_row(RECORD_DUE, parameters)
        self.counts.update(started=started, expiring=expiring, expired=expired, failed=failed)
        if failed:
            self._skip = [skip + count for skip, count in zip(self._skip, failed_of, strict=True)]
            logger.error("could not record times of entitlements", failed=failed, reason=error)
        return bool(started or expiring or expired or (failed and sum(self._skip) <= _MANY_FAILED))
