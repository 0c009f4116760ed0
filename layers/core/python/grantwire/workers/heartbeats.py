"""The last run of each worker, in `worker_heartbeats`, so that operators see whether the workers run (T1).

A heartbeat is written at the end of each run, and also as soon as a dependency becomes unavailable or recovers. A run
takes a minute, so a report during the run writes the first one of a new installation, shows that a worker runs again
after an interruption, replaces DEGRADED by OK, and updates what only the worker knows, such as the consumer lag. A
heartbeat uses a connection of its own, which is closed again. A failure to write it is logged and has no other effect.
"""

from __future__ import annotations

import json
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.database import Database
from grantwire.errors import GrantwireError, RetryableError, SystemFaultError
from grantwire.observability import logger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import LiteralString

    from grantwire.database import DatabaseSettings

# In characters and bytes. CHECK constraints of the table have the same limits.
_MAX_ERROR_LENGTH = 500
_MAX_RESULT_BYTES = 16_384
# Runs overlap and take a minute, so the schedule was interrupted if the last heartbeat is older.
_OLD_SECONDS = 120.0
_NO_FACTS: Mapping[str, Any] = MappingProxyType({})

# Runs overlap, and the last one that ends writes the row. A report during a run does not count as a run.
_RECORD = """
INSERT INTO worker_heartbeats AS known
       (worker, started_at, finished_at, outcome, error, result, failures, last_success_at)
VALUES (%(worker)s, now() - %(seconds)s * interval '1 second', now(), %(outcome)s, %(error)s, %(result)s::jsonb,
        (%(outcome)s <> 'OK')::integer, CASE %(outcome)s WHEN 'OK' THEN now() END)
    ON CONFLICT (worker) DO UPDATE
   SET started_at = EXCLUDED.started_at, finished_at = EXCLUDED.finished_at, outcome = EXCLUDED.outcome,
       error = EXCLUDED.error, result = EXCLUDED.result,
       failures = CASE EXCLUDED.outcome WHEN 'OK' THEN 0 ELSE known.failures + %(is_run)s::integer END,
       last_success_at = coalesce(EXCLUDED.last_success_at, known.last_success_at)
RETURNING worker
"""

# Keeps the result of the last run, and an outcome FAILED: a bug may come again at any time until the end of the run.
# The first report after the last run shows that the worker runs again; later ones do not, as long as no run ends.
_REPORT = """
INSERT INTO worker_heartbeats AS known (worker, started_at, finished_at, outcome, result, failures, last_success_at)
VALUES (%(worker)s, now() - %(seconds)s * interval '1 second', now(), 'OK', %(result)s::jsonb, 0, now())
    ON CONFLICT (worker) DO UPDATE
   SET result = known.result || %(facts)s::jsonb,
       outcome = CASE known.outcome WHEN 'FAILED' THEN 'FAILED' ELSE 'OK' END,
       error = CASE known.outcome WHEN 'FAILED' THEN known.error END,
       failures = CASE known.outcome WHEN 'FAILED' THEN known.failures ELSE 0 END,
       last_success_at = CASE known.outcome WHEN 'FAILED' THEN known.last_success_at ELSE now() END,
       resumed_at = CASE WHEN known.resumed_at > known.finished_at THEN known.resumed_at ELSE now() END
RETURNING worker
"""


class Run(NamedTuple):
    """A run of a worker: how long it took, its result, and the error at its end, if any.

    `is_over` is false for a report during the run.
    """

    seconds: float
    result: Mapping[str, Any]
    error: BaseException | None = None
    is_over: bool = True

    @property
    def outcome(self) -> str:
        """OK, DEGRADED if a dependency is unavailable, or FAILED."""
        if self.error is None:
            return "OK"
        return "DEGRADED" if isinstance(self.error, RetryableError | SystemFaultError) else "FAILED"

    @property
    def error_text(self) -> str | None:
        """The reason for operators. A bug is named by its class only, because its text may contain data."""
        if self.error is None:
            return None
        text = (
            str(self.error) if isinstance(self.error, GrantwireError) else f"{type(self.error).__name__}, see the log"
        )
        return text[:_MAX_ERROR_LENGTH]


class Heartbeats:
    """Writes the heartbeats of one worker."""

    def __init__(self, settings: DatabaseSettings, worker: str) -> None:
        # The commit does not wait for the disk, because a lost heartbeat does no harm.
        session = {"synchronous_commit": "off"}
        self._database = Database(settings, application_name="grantwire-heartbeat", session=session)
        self._worker = worker
        # Whether the row may be missing, or may say DEGRADED, and when it was written last.
        self._is_due = True
        self._written_at = 0.0

    def record(self, run: Run) -> None:
        """Replace the row of this worker. Never raises."""
        self._is_due = run.outcome != "OK"
        self._write(_RECORD, run)

    def report(self, run: Run, facts: Mapping[str, Any]) -> None:
        """Write the row of this worker during a run, if it has none or something is new. Never raises."""
        if self._is_due or facts or time.time() - self._written_at > _OLD_SECONDS:
            self._is_due = False
            self._write(_REPORT, run, facts)

    def _write(self, statement: LiteralString, run: Run, facts: Mapping[str, Any] = _NO_FACTS) -> None:
        try:
            self._database.fetch_row(
                statement,
                {
                    "worker": self._worker,
                    "seconds": run.seconds,
                    "outcome": run.outcome,
                    "error": run.error_text,
                    "result": _encode(run.result),
                    "is_run": run.is_over,
                    "facts": _encode(facts),
                },
            )
        except Exception as error:  # noqa: BLE001 - the work of the run is done, and must not fail because of this
            logger.warning("could not record heartbeat", worker=self._worker, reason=str(error))
        finally:
            self._written_at = time.time()  # a frozen execution environment has no other clock
            self._database.close()


def _encode(result: Mapping[str, Any]) -> str:
    text = json.dumps(dict(result), default=str)
    return text if len(text) <= _MAX_RESULT_BYTES else "{}"
