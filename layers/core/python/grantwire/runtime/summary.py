"""The runtime of show_summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.read_model.summary import Summaries
from grantwire.settings import load

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class SummaryRuntime:
    """The objects that show_summary needs."""

    summaries: Summaries

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; it connects to the database on first use."""
        return cls(Summaries(Database(load(DatabaseSettings, environ))))
