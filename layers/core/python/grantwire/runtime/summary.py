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
    """What show_summary works with."""

    summaries: Summaries

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings; the connection is made when it is first used."""
        return cls(Summaries(Database(load(DatabaseSettings, environ))))
