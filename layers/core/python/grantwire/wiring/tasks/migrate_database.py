"""The runtime of migrate_database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.database import DatabaseSettings
from grantwire.settings import group, integer, load, setting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """The settings of migrate_database, which connects to the database as its owner."""

    database: DatabaseSettings = group(DatabaseSettings)
    # sweep_retention has the same variable. This value is the minimum that the database enforces on the sweep.
    audit_months: int | None = setting("ENTITLEMENT_AUDIT_RETENTION_MONTHS", integer(low=1, high=1200), optional=True)


@dataclass(frozen=True, slots=True)
class MigrationRuntime:
    """The objects that migrate_database needs."""

    database: DatabaseSettings
    audit_months: int | None = None

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; the task opens its own connection."""
        settings = load(MigrationSettings, environ)
        return cls(settings.database, settings.audit_months)
