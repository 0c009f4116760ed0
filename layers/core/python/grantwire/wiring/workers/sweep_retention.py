"""The runtime of sweep_retention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.retention.settings import RetentionSettings
from grantwire.retention.sweep import Sweep
from grantwire.settings import group, load
from grantwire.wiring.workers.runtime import WorkerRuntime
from grantwire.workers.heartbeats import Heartbeats

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """The settings of sweep_retention."""

    database: DatabaseSettings = group(DatabaseSettings)
    retention: RetentionSettings = group(RetentionSettings)


class SweepRuntime(WorkerRuntime):
    """The objects that sweep_retention needs."""

    __slots__ = ()

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; the connection is opened when work begins."""
        settings = load(SweepSettings, environ)
        sweep = Sweep(Database(settings.database, application_name="grantwire-sweep"), settings.retention)
        return cls(sweep, (sweep.close,), Heartbeats(settings.database, sweep.name))
