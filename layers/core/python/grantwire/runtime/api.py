"""The runtime of grant, revoke and query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements import Entitlements
from grantwire.idempotency import IdempotencySettings
from grantwire.settings import group, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What grant, revoke and query read from their environment."""

    database: DatabaseSettings = group(DatabaseSettings)
    idempotency: IdempotencySettings = group(IdempotencySettings)

    def problems(self) -> Iterator[str]:
        """A wait for a key must end before the statement that waits is cut off."""
        if self.idempotency.lock_wait >= self.database.statement_timeout:
            yield "IDEMPOTENCY_LOCK_WAIT must be shorter than DATABASE_STATEMENT_TIMEOUT"


@dataclass(frozen=True, slots=True)
class ApiRuntime:
    """What grant, revoke and query work with."""

    entitlements: Entitlements

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings; the connection is made when it is first used."""
        settings = load(ApiSettings, environ)
        return cls(Entitlements(Database(settings.database), settings.idempotency))
