"""The runtime of a route that authenticates its callers itself, because its gateway does not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from grantwire.clients.authorizer import Authorizer, DecisionCache
from grantwire.clients.lookup import LimitedLookup
from grantwire.clients.store import Clients
from grantwire.database import Database
from grantwire.settings import group, integer, load, setting
from grantwire.wiring.callers import CallerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class AuthenticationSettings:
    """The settings of authorize_caller, and how long its decisions are valid."""

    callers: CallerSettings = group(CallerSettings)
    cache_seconds: int = setting("AUTHORIZER_CACHE_SECONDS", integer(low=0, high=3600), default="60")

    def problems(self) -> Iterator[str]:
        """Yield a problem if the database has an AWS secret: on AWS, the gateway authenticates."""
        if self.callers.database.secret_arn is not None:
            yield "GATEWAY_AUTHENTICATES=false is for local stacks and cannot be used with DATABASE_SECRET_ARN"


def build_decisions(environ: Mapping[str, str]) -> DecisionCache:
    """Build the decisions about callers from environment variables; they connect to the database on first use."""
    settings = load(AuthenticationSettings, environ)
    clients = LimitedLookup(Clients(Database(settings.callers.database), settings.callers.environment))
    return DecisionCache(Authorizer(clients, settings.callers.environment), timedelta(seconds=settings.cache_seconds))
