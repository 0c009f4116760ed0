"""Metrics for OpenTelemetry (C11). Requires the package opentelemetry-api."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire_idempotency._internal.foundation.optional import optional_package

with optional_package("opentelemetry-api", used_by="OpenTelemetryMetrics", module="opentelemetry"):
    from opentelemetry.metrics import get_meter

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from grantwire_idempotency._internal.metrics.interface import CheckLabel

# Advice for the buckets of the histogram. Those of the SDK are for milliseconds: one would contain all checks.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class OpenTelemetryMetrics:
    """Records the metrics on a meter of OpenTelemetry, which your application exports.

    `meter_provider` defaults to the global one, also if it is set later. The attributes are the name of the job and the
    result of the check, so their number does not grow with the keys.
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        meter = get_meter("grantwire_idempotency", meter_provider=meter_provider)
        self._checks = meter.create_counter("idempotency.check", "{check}", "Checks of a key.")
        self._seconds = meter.create_histogram(
            "idempotency.check.duration",
            "s",
            "Response time of the store.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._unguarded = meter.create_counter("idempotency.unguarded", "{run}", "Runs without a claim.")

    def record_check(self, name: str, result: CheckLabel, seconds: float) -> None:
        """See `IdempotencyMetrics`."""
        self._checks.add(1, {"idempotency.job": name, "idempotency.result": result})
        self._seconds.record(seconds, {"idempotency.job": name})

    def record_unguarded_run(self, name: str) -> None:
        """See `IdempotencyMetrics`."""
        self._unguarded.add(1, {"idempotency.job": name})

    def flush(self) -> None:
        """See `IdempotencyMetrics`. The reader of the application exports the values itself."""
