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
    """What migrate_database reads from its environment: the way to the database as its owner."""

    database: DatabaseSettings = group(DatabaseSettings)
    # The sweep has the same variable; this one is what the owner allows, and the sweep's cannot go below it.
    audit_months: int | None = setting("ENTITLEMENT_AUDIT_RETENTION_MONTHS", integer(low=1, high=1200), optional=True)


@dataclass(frozen=True, slots=True)
class MigrationRuntime:
    """What migrate_database works with."""

    database: DatabaseSettings
    audit_months: int | None = None

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings; the task opens a connection of its own."""
        settings = load(MigrationSettings, environ)
        return cls(settings.database, settings.audit_months)
