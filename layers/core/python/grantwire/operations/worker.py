"""The worker that executes the commands of operators (T1)."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ClassVar, Protocol

from grantwire.errors import GrantwireError, LeaseLostError, RejectedError, RetryableError
from grantwire.observability import logger
from grantwire.operations import command_store
from grantwire.operations.command_store import FINISHED, Fence
from grantwire.workers.leases import Completion, Failure, Lease, RetryDecision, decide_retry
from grantwire.workers.loop import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grantwire.database import Database
    from grantwire.operations.command_store import BatchOutcome, ClaimedCommand
    from grantwire.workers.budget import Budget
    from grantwire.workers.leases import LeaseSettings

_MAX_ERROR_LENGTH = 500
# An outage is no failure of the command, so its attempts are not counted. The delay is that of the third attempt.
_OUTAGE_ATTEMPT = 3
_INTERRUPTED_TOO_OFTEN = "interrupted too often: the worker stopped during this command"


class Executor(Protocol):
    """Executes the commands of one kind."""

    def execute_batch(self, claimed: ClaimedCommand, fence: Fence) -> BatchOutcome:
        """Execute the next batch and return its outcome, which is committed; the last one has the position FINISHED."""


class CommandWorker(Worker):
    """Executes one command at a time, batch by batch, oldest first. Several workers may run at the same time.

    A batch runs in a thread, while `lease_database` renews the lease. So a lease can be shorter than a batch.
    """

    name = "run_operator_commands"
    counters: ClassVar[Mapping[str, str | None]] = {
        "batches": None,
        "commands_done": "CommandsDone",
        "commands_failed": "CommandsFailed",
    }

    def __init__(
        self,
        database: Database,
        lease_database: Database,
        executors: Mapping[str, Executor],
        settings: LeaseSettings,
        worker: str,
    ) -> None:
        super().__init__()
        self._database = database
        self._lease_database = lease_database
        self._executors = executors
        self._settings = settings
        self._worker = worker
        self._threads = ThreadPoolExecutor(max_workers=1)
        self._lease: Lease[ClaimedCommand] | None = None

    async def step(self, budget: Budget) -> bool:  # noqa: ARG002 - a batch is short, or one statement
        """Execute one batch; return false if no command is due."""
        if self._lease is None:
            self._lease = self._claim()
        if self._lease is None:
            return False
        (claimed,) = self._lease.held.values()
        try:
            await self._execute(self._lease, claimed)
        except LeaseLostError:
            self._lease = None
            raise
        except Exception as error:  # noqa: BLE001 - the policy is in _fail
            self._fail(self._lease, claimed, error)
        return True

    async def wait(self, seconds: float) -> None:
        """Wait for the next poll."""
        await asyncio.sleep(min(seconds, self._settings.poll_interval.total_seconds()))

    async def end(self) -> None:
        """Release the command, so that another worker continues it at once."""
        if self._lease is not None:
            try:
                with self._database.session() as connection:
                    self._lease.release(connection)
            except (LeaseLostError, RetryableError) as error:
                logger.warning("could not release command", reason=str(error))
            self._lease = None

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._threads.shutdown()
        self._lease_database.close()
        self._database.close()

    def _claim(self) -> Lease[ClaimedCommand] | None:
        lease = Lease(command_store, self._settings, self._worker)
        with self._database.session() as connection, connection.transaction():
            held = lease.claim(connection, 1)
        if not held:
            return None
        (claimed,) = held
        if claimed.attempt_count >= self._settings.max_attempts:
            self._write_failure(lease, claimed, RetryDecision(claimed.attempt_count, None), _INTERRUPTED_TOO_OFTEN)
            return None
        return lease

    async def _execute(self, lease: Lease[ClaimedCommand], claimed: ClaimedCommand) -> None:
        """Execute one batch, and complete or release the command as its outcome says."""
        executor, fence = self._executors[claimed.command.kind], Fence(lease.token, claimed.command_id)
        batch = asyncio.get_running_loop().run_in_executor(self._threads, executor.execute_batch, claimed, fence)
        while not batch.done():
            await asyncio.wait([batch], timeout=self._settings.lease.total_seconds() / 3)
            if not batch.done():
                await asyncio.to_thread(self._renew, lease)
        self._continue(lease, claimed, await batch)

    def _continue(self, lease: Lease[ClaimedCommand], claimed: ClaimedCommand, outcome: BatchOutcome) -> None:
        self.counts["batches"] += 1
        with self._database.session() as connection:
            if outcome.position == FINISHED:
                lease.complete(connection, [Completion(claimed.command_id)])
                self._lease = None
            elif outcome.delay is not None:  # another command may run until the next batch is due
                lease.release(connection)
                self._lease = None
            elif lease.should_renew:
                lease.renew(connection)
        if self._lease is None and outcome.position == FINISHED:
            self.counts["commands_done"] += 1
            logger.info("operator command completed", command_id=str(claimed.command_id), kind=claimed.command.kind)
        if self._lease is not None:
            lease.update(
                claimed._replace(
                    position=outcome.position,
                    selected=claimed.selected + outcome.selected,
                    result=claimed.result if outcome.result is None else outcome.result,
                )
            )

    def _renew(self, lease: Lease[ClaimedCommand]) -> None:
        """Extend the lease while a batch runs. If that fails, the batch finds out itself when it commits."""
        try:
            with self._lease_database.session() as connection:
                lease.renew(connection)
        except GrantwireError as error:
            logger.warning("could not renew lease", reason=str(error))

    def _fail(self, lease: Lease[ClaimedCommand], claimed: ClaimedCommand, error: Exception) -> None:
        """Retry later, without end if a dependency is unavailable; a command that can never succeed is FAILED."""
        is_outage = isinstance(error, RetryableError)
        if is_outage:
            decision = RetryDecision(
                claimed.attempt_count, self._settings.backoff.delay(_OUTAGE_ATTEMPT, random.random)
            )
        else:
            permanent = isinstance(error, RejectedError)
            decision = decide_retry(self._settings, claimed.attempt_count, random.random, permanent=permanent)
        if not is_outage:
            logger.error(
                "operator command failed", command_id=str(claimed.command_id), kind=claimed.command.kind, exc_info=error
            )
        text = str(error) if isinstance(error, GrantwireError) else f"{type(error).__name__}, see the log"
        self._write_failure(lease, claimed, decision, text)

    def _write_failure(
        self, lease: Lease[ClaimedCommand], claimed: ClaimedCommand, decision: RetryDecision, reason: str
    ) -> None:
        self._lease = None
        failure = Failure(claimed.command_id, decision, reason[:_MAX_ERROR_LENGTH])
        with self._database.session() as connection:
            lease.fail(connection, [failure])
        if decision.is_final:
            self.counts["commands_failed"] += 1
