"""The runtime of grant, revoke, extend and query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.clients.limits import LimitSettings, RateLimiter
from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements import Entitlements
from grantwire.entitlements.settings import TimeSettings
from grantwire.idempotency import IdempotencySettings
from grantwire.settings import group, load
from grantwire.wiring.early import connect_early

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The settings of grant, revoke, extend and query."""

    database: DatabaseSettings = group(DatabaseSettings)
    idempotency: IdempotencySettings = group(IdempotencySettings)
    times: TimeSettings = group(TimeSettings)
    limits: LimitSettings = group(LimitSettings)

    def problems(self) -> Iterator[str]:
        """Yield a problem if the wait for an idempotency key could exceed the timeout of its statement."""
        if self.idempotency.lock_wait >= self.database.statement_timeout:
            yield "IDEMPOTENCY_LOCK_WAIT must be shorter than DATABASE_STATEMENT_TIMEOUT"


@dataclass(frozen=True, slots=True)
class ApiRuntime:
    """The objects that grant, revoke, extend and query need."""

    entitlements: Entitlements
    limiter: RateLimiter | None = None

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; on Lambda it connects to the database, too."""
        settings = load(ApiSettings, environ)
        database = connect_early(Database(settings.database), environ)
        entitlements = Entitlements(database, settings.idempotency, settings.times)
        return cls(entitlements, RateLimiter(database, settings.limits))
