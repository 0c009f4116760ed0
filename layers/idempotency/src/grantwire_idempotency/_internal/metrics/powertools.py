"""CloudWatch metrics, written by Powertools for AWS Lambda (C11). Requires the package aws-lambda-powertools."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from grantwire_idempotency._internal.foundation.optional import optional_package
from grantwire_idempotency._internal.metrics.interface import DEFAULT_NAMESPACE, BufferedMetrics

with optional_package(
    "aws-lambda-powertools", used_by="PowertoolsMetrics", alternative="pass other `metrics`, such as EmfMetrics()"
):
    from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire_idempotency._internal.metrics.interface import CheckLabel, Checks


class PowertoolsMetrics(BufferedMetrics):
    """Writes the metrics of `EmfMetrics` with Powertools, so that Powertools' environment variables apply.

    `namespace` defaults to POWERTOOLS_METRICS_NAMESPACE, then to Grantwire. All instances of Powertools' `Metrics`
    share one state. This collector has its own, so the metrics of the surrounding function stay separate.
    """

    def __init__(self, namespace: str | None = None) -> None:
        super().__init__()
        # A service would become a dimension of every metric.
        self._document = EphemeralMetrics(namespace=namespace, service="")
        self._document.namespace = self._document.namespace or DEFAULT_NAMESPACE

    def write_job(self, job: str, checks: Checks, unguarded: int) -> None:
        """See `BufferedMetrics`."""
        with self._open_document(job=job) as document:
            for result, seconds in checks:
                document.add_metric("idempotency_check_duration_seconds", MetricUnit.Seconds, seconds)
                if result != "error":
                    rate = float(result == "duplicate")
                    document.add_metric("idempotency_duplicate_rate", MetricUnit.NoUnit, rate)
            if unguarded:
                document.add_metric("idempotency_unguarded_total", MetricUnit.Count, unguarded)

    def write_total(self, job: str, result: CheckLabel, total: int) -> None:
        """See `BufferedMetrics`."""
        with self._open_document(job=job, result=result) as document:
            document.add_metric("idempotency_check_total", MetricUnit.Count, total)

    @contextmanager
    def _open_document(self, **dimensions: str) -> Iterator[EphemeralMetrics]:
        """Yield a document with these dimensions; write and clear it at the end, even if metrics are disabled."""
        try:
            for name, value in dimensions.items():
                self._document.add_dimension(name, value)
            yield self._document
            self._document.flush_metrics()
        finally:
            self._document.clear_metrics()
