"""Limits per caller: a token bucket for each client, in PostgreSQL (G6, ADR 0033).

An execution environment takes tokens in chunks of up to a tenth of the burst and spends them without a round trip. A
chunk is valid for one second, so the tokens of a frozen environment are not spent later. Therefore all environments
together let at most `burst + rate x (t + 1 s)` requests of a client pass in any time `t`. A refusal is remembered, too:
until the bucket has tokens again, the environment refuses the client's requests without a round trip.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.errors import RateLimitedError
from grantwire.observability import MetricUnit, logger, write_metric
from grantwire.settings import integer, setting

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from grantwire.database import Database

MAX_LIMIT = 1_000_000
CHUNK_SECONDS = 1.0
# Bounds the memory of an environment. A client that is forgotten costs one more call.
_MAX_CLIENTS = 10_000

# The SQL function (infra/sql/functions/client_tokens_take.sql) knows the limits of the client and decides.
_TAKE = "SELECT granted, retry_after FROM client_tokens_take(%(client_id)s, %(rate)s, %(burst)s, %(now)s)"


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """The limits of clients that have none of their own: requests per second, and the size of the bucket."""

    rate: int = setting("CLIENT_RATE_LIMIT", integer(low=1, high=MAX_LIMIT), default="200")
    burst: int = setting("CLIENT_BURST_LIMIT", integer(low=1, high=MAX_LIMIT), default="400")


@dataclass(slots=True)
class _Chunk:
    """Tokens to spend from `start` until `end`; a chunk that was taken empty is a refusal for that time."""

    tokens: int
    refused: bool
    start: float
    end: float


class RateLimiter:
    """Counts the requests of each client in one execution environment.

    `clock` returns the time of this environment in seconds. It is the time of day, because other clocks may stop while
    an environment is frozen. `database_clock` returns the time for the bucket; None means the database's clock.
    """

    def __init__(
        self,
        database: Database,
        settings: LimitSettings,
        clock: Callable[[], float] = time.time,
        database_clock: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._clock = clock
        self._database_clock = database_clock
        self._chunks: dict[str, _Chunk] = {}

    def take(self, client_id: str) -> None:
        """Take one token. Raise RateLimitedError if there is none, RetryableError if PostgreSQL is unavailable."""
        now = self._clock()
        chunk = self._chunks.get(client_id)
        if chunk is None or not chunk.start <= now < chunk.end or not (chunk.tokens or chunk.refused):
            chunk = self._take_chunk(client_id, now)
        if chunk.refused:
            raise RateLimitedError("too many requests, try again later", retry_after=math.ceil(chunk.end - now))
        chunk.tokens -= 1

    def _take_chunk(self, client_id: str, now: float) -> _Chunk:
        parameters = {
            "client_id": client_id,
            "rate": self._settings.rate,
            "burst": self._settings.burst,
            "now": self._database_clock(),
        }
        granted, retry_after = self._database.fetch_row(_TAKE, parameters)
        if len(self._chunks) >= _MAX_CLIENTS:
            self._chunks.clear()
        chunk = _Chunk(granted, not granted, now, now + (CHUNK_SECONDS if granted else retry_after))
        self._chunks[client_id] = chunk
        if chunk.refused:
            logger.warning("client reached its rate limit", client_id=client_id, retry_after_s=round(retry_after, 3))
            write_metric("LimitsReached", MetricUnit.Count, 1)
        return chunk
