"""The runtime of migrate_database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.database import DatabaseSettings
from grantwire.settings import load

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class MigrationRuntime:
    """What migrate_database works with."""

    database: DatabaseSettings

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings; the task opens a connection of its own."""
        return cls(load(DatabaseSettings, environ))
