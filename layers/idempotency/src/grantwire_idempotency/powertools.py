"""CloudWatch metrics, written by Powertools for AWS Lambda (C11). Requires the package aws-lambda-powertools."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from grantwire_idempotency.optional import optional_package

with optional_package(
    "aws-lambda-powertools", used_by="PowertoolsMetrics", alternative="pass `metrics`, such as NoMetrics()"
):
    from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from grantwire_idempotency.metrics import CheckLabel

_NAMESPACE = "Grantwire"
# CloudWatch accepts 100 values of a metric in one document. Powertools writes the document when it gets the hundredth
# value, even if metrics are disabled, so stop at 99.
_MAX_VALUES_PER_DOCUMENT = 99
# Powertools prints the text and the line end separately, so two threads must not write at the same time.
_WRITE_LOCK = threading.Lock()


class PowertoolsMetrics:
    """Writes CloudWatch metrics as log lines (EMF). Each call or batch writes one line, and one more for each result.

        idempotency_check_total{job, result}      number of checks with the result new, duplicate or error; use Sum
        idempotency_check_duration_seconds{job}   response time of the store
        idempotency_duplicate_rate{job}           0 or 1 for each check; use Average
        idempotency_unguarded_total{job}          number of runs without a claim; use Sum

    `namespace` defaults to POWERTOOLS_METRICS_NAMESPACE, then to Grantwire. Powertools' other environment variables
    apply too. All instances of Powertools' `Metrics` share one state. This collector has its own state, so the metrics
    of the surrounding function stay separate. Thread-safe.
    """

    def __init__(self, namespace: str | None = None) -> None:
        # A service would become a dimension of every metric.
        self._document = EphemeralMetrics(namespace=namespace, service="")
        self._document.namespace = self._document.namespace or _NAMESPACE
        self._lock = threading.Lock()
        self._checks: dict[str, list[tuple[CheckLabel, float]]] = defaultdict(list)
        self._unguarded: Counter[str] = Counter()

    def record_check(self, name: str, result: CheckLabel, seconds: float) -> None:
        """See `IdempotencyMetrics`."""
        with self._lock:
            self._checks[name].append((result, seconds))

    def record_unguarded_run(self, name: str) -> None:
        """See `IdempotencyMetrics`."""
        with self._lock:
            self._unguarded[name] += 1

    def flush(self) -> None:
        """See `IdempotencyMetrics`."""
        with self._lock:
            checks, self._checks = self._checks, defaultdict(list)
            unguarded, self._unguarded = self._unguarded, Counter()
        with _WRITE_LOCK:
            for job in checks.keys() | unguarded.keys():
                self._write_job(job, checks[job], unguarded[job])
                self._write_totals(job, checks[job])

    def _write_job(self, job: str, checks: Sequence[tuple[CheckLabel, float]], unguarded: int) -> None:
        """Write the metrics whose only dimension is the job."""
        for start in range(0, len(checks), _MAX_VALUES_PER_DOCUMENT) or (0,):
            with self._open_document(job=job) as document:
                for result, seconds in checks[start : start + _MAX_VALUES_PER_DOCUMENT]:
                    document.add_metric("idempotency_check_duration_seconds", MetricUnit.Seconds, seconds)
                    if result != "error":
                        rate = float(result == "duplicate")
                        document.add_metric("idempotency_duplicate_rate", MetricUnit.NoUnit, rate)
                if unguarded and start == 0:
                    document.add_metric("idempotency_unguarded_total", MetricUnit.Count, unguarded)

    def _write_totals(self, job: str, checks: Sequence[tuple[CheckLabel, float]]) -> None:
        """Write the total of each result. The result is a second dimension, which requires a separate document."""
        for result, total in Counter(result for result, _ in checks).items():
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
