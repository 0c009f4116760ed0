"""Limits per caller: a token bucket for each client, in PostgreSQL (G6, ADR 0033).

An execution environment takes tokens in chunks of up to a tenth of the burst and spends them without a round trip. A
chunk is valid for one second, so the tokens of a frozen environment are not spent later. Therefore all environments
together let at most `burst + rate x (t + 1 s)` requests of a client pass in any time `t`. A refusal is remembered, too:
until the bucket has tokens again, the environment refuses the client's requests without a round trip.

Limits count work (G13): each item of a batch, and each pair of a request that checks several, counts as one request.
Such a request takes all its tokens or none, with at most one round trip. If it is refused, smaller requests may still
pass. One that needs more tokens than the bucket can hold never passes, and is refused for good.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.errors import RateLimitedError, TooLargeError
from grantwire.observability import MetricUnit, logger, write_metric
from grantwire.settings import integer, setting

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from typing import NoReturn

    from grantwire.database import Database

MAX_LIMIT = 1_000_000
CHUNK_SECONDS = 1.0
# Bounds the memory of an environment. A client that is forgotten costs one more call.
_MAX_CLIENTS = 10_000

# The SQL function (infra/sql/functions/client_tokens_take.sql) knows the limits of the client and decides.
_TAKE = """
SELECT granted, retry_after, burst
  FROM client_tokens_take(%(client_id)s, %(rate)s, %(burst)s, %(now)s, %(count)s::integer)
"""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """The limits of clients that have none of their own: requests per second, and the size of the bucket."""

    rate: int = setting("CLIENT_RATE_LIMIT", integer(low=1, high=MAX_LIMIT), default="200")
    burst: int = setting("CLIENT_BURST_LIMIT", integer(low=1, high=MAX_LIMIT), default="400")


@dataclass(slots=True)
class _Chunk:
    """Tokens to spend from `start` until `end`."""

    tokens: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The bucket did not have `tokens` tokens, and has them at `end`. It never has more than `burst`."""

    tokens: int
    burst: int
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
        self._refusals: dict[str, _Refusal] = {}

    def take(self, client_id: str, count: int = 1) -> None:
        """Take `count` tokens: one for each request, or for each item of a request.

        Raise RateLimitedError if there are too few now, TooLargeError if the bucket never has as many, RetryableError
        if PostgreSQL is unavailable. No token is taken then, but a request that is too large counts as one.
        """
        now = self._clock()
        chunk = self._chunks.get(client_id)
        if chunk is None or not chunk.start <= now < chunk.end:
            chunk = _Chunk(0, now, now)
        if chunk.tokens < count:
            self._check_refusal(client_id, count, chunk, now)
            chunk = self._take_chunk(client_id, count, chunk, now)
        chunk.tokens -= count

    def _check_refusal(self, client_id: str, count: int, held: _Chunk, now: float) -> None:
        """Raise the error that PostgreSQL would cause, if it is known from a refusal that is still valid."""
        refusal = self._refusals.get(client_id)
        if refusal is None or not refusal.start <= now < refusal.end:
            return
        if count > refusal.burst:
            self._refuse_too_large(client_id, count, refusal.burst)
        if count - held.tokens >= refusal.tokens:
            raise _rate_limited(refusal, now)

    def _take_chunk(self, client_id: str, count: int, held: _Chunk, now: float) -> _Chunk:
        """Take what is missing from the bucket, and return a chunk that has at least `count` tokens.

        The request spends the tokens that were held before, so none of them is valid for longer than before.
        """
        missing = count - held.tokens
        parameters = {
            "client_id": client_id,
            "rate": self._settings.rate,
            "burst": self._settings.burst,
            "now": self._database_clock(),
            "count": missing,
        }
        granted, retry_after, burst = self._database.fetch_row(_TAKE, parameters)
        if max(len(self._chunks), len(self._refusals)) >= _MAX_CLIENTS:
            self._chunks.clear()
            self._refusals.clear()
        if count > burst:
            held.tokens += granted
            self._refuse_too_large(client_id, count, burst)
        if granted:
            chunk = self._chunks[client_id] = _Chunk(held.tokens + granted, now, now + CHUNK_SECONDS)
            return chunk
        refusal = self._refusals[client_id] = _Refusal(missing, burst, now, now + retry_after)
        logger.warning("client reached its rate limit", client_id=client_id, retry_after_s=round(retry_after, 3))
        write_metric("LimitsReached", MetricUnit.Count, 1)
        raise _rate_limited(refusal, now)

    def _refuse_too_large(self, client_id: str, count: int, burst: int) -> NoReturn:
        self.take(client_id)
        raise TooLargeError(
            f"this request counts as {count} requests, but the burst limit of this client is {burst}; send fewer items"
            " at once"
        )


def _rate_limited(refusal: _Refusal, now: float) -> RateLimitedError:
    return RateLimitedError("too many requests, try again later", retry_after=math.ceil(refusal.end - now))
