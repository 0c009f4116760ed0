"""The runtime of change_batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.clients.limits import RateLimiter
from grantwire.database import Database
from grantwire.entitlements.batch_store import EntitlementBatches
from grantwire.settings import load
from grantwire.wiring.early import connect_early
from grantwire.wiring.routes.entitlements import ApiSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class BatchRuntime:
    """The objects that change_batch needs."""

    batches: EntitlementBatches
    limiter: RateLimiter | None = None

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; on Lambda it connects to the database, too."""
        settings = load(ApiSettings, environ)
        database = connect_early(Database(settings.database), environ)
        batches = EntitlementBatches(
            database, settings.idempotency, settings.times, settings.database.statement_timeout
        )
        return cls(batches, RateLimiter(database, settings.limits))
