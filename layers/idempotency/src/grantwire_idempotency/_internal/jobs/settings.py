"""The settings of the runs of a job or a consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire_idempotency._internal.foundation.defaults import DEFAULT_ORDER_TTL
from grantwire_idempotency._internal.foundation.serializers import JsonSerializer

if TYPE_CHECKING:
    from datetime import timedelta

    from grantwire_idempotency._internal.foundation.fail_mode import FailMode
    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.serializers import Serializer
    from grantwire_idempotency._internal.metrics.interface import IdempotencyMetrics

_JSON = JsonSerializer()


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
    """What a job or a consumer decides about its runs; `metrics` and `logger` default to those of the library."""

    name: str
    ttl: timedelta
    fail_mode: FailMode
    order_ttl: timedelta = DEFAULT_ORDER_TTL
    metrics: IdempotencyMetrics | None = None
    serializer: Serializer = _JSON
    logger: LibraryLogger | None = None
