"""The runtime of operations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from grantwire.clients.limits import LimitSettings, RateLimiter
from grantwire.clients.me import OwnClient
from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements.settings import TimeSettings
from grantwire.idempotency import IdempotencySettings
from grantwire.operations.command_list import CommandList
from grantwire.operations.commands import Commands
from grantwire.operations.dead_letters import DeadLetterReader
from grantwire.operations.problems import ProblemSettings
from grantwire.operations.redrive import DryRuns
from grantwire.operations.samples import Samples
from grantwire.operations.status import Statuses
from grantwire.operations.traces import Traces
from grantwire.settings import group, integer, load, setting
from grantwire.wiring.early import connect_early

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class OperationsSettings:
    """The settings of operations."""

    database: DatabaseSettings = group(DatabaseSettings)
    idempotency: IdempotencySettings = group(IdempotencySettings)
    limits: LimitSettings = group(LimitSettings)
    thresholds: ProblemSettings = group(ProblemSettings)
    times: TimeSettings = group(TimeSettings)
    retention_days: int = setting("NOTIFICATION_RETENTION_RETENTION_DAYS", integer(low=1, high=3650), default="30")


@dataclass(frozen=True, slots=True)
class OperationsRuntime:
    """The objects that operations needs. It has no connection to NATS."""

    database: Database
    statuses: Statuses
    samples: Samples
    dead_letters: DeadLetterReader
    dry_runs: DryRuns
    commands: Commands
    command_list: CommandList
    traces: Traces
    times: TimeSettings
    own_client: OwnClient
    limiter: RateLimiter | None = None

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; on Lambda it connects to the database, too."""
        settings = load(OperationsSettings, environ)
        database = connect_early(Database(settings.database, application_name="grantwire-operations"), environ)
        retention = timedelta(days=settings.retention_days)
        return cls(
            database,
            Statuses(database, settings.thresholds, settings.times),
            Samples(database, settings.times, settings.thresholds.schedule),
            DeadLetterReader(database),
            DryRuns(database, retention),
            Commands(database, settings.idempotency),
            CommandList(database),
            Traces(database, settings.idempotency.ttl),
            settings.times,
            OwnClient(database, settings.limits),
            RateLimiter(database, settings.limits),
        )
