"""The composition root: the only place where settings, connections and capabilities meet.

A runtime is what one function needs, and no more. It is built once for each execution environment: in the init phase on
Lambda, so that a bad setting stops the function before it takes a request, and at the first call elsewhere, so that
importing a handler needs no environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements import Entitlements
from grantwire.idempotency import IdempotencySettings
from grantwire.settings import group, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Self

R = TypeVar("R")


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


@dataclass(frozen=True, slots=True)
class MigrationRuntime:
    """What migrate_database works with."""

    database: DatabaseSettings

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings; the task opens a connection of its own."""
        return cls(load(DatabaseSettings, environ))


class Once(Generic[R]):
    """A runtime that is built once: now on Lambda, at the first `get` elsewhere."""

    def __init__(self, build: Callable[[Mapping[str, str]], R]) -> None:
        self._build = build
        self._built: R | None = None
        if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
            self.get()

    def get(self) -> R:
        """The runtime, or ConfigError."""
        if self._built is None:
            self._built = self._build(os.environ)
        return self._built
