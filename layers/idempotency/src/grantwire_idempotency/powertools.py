"""Metrics in CloudWatch, written by Powertools for AWS Lambda (C11). Needs the package aws-lambda-powertools."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from grantwire_idempotency.optional import needs

with needs("aws-lambda-powertools", for_what="PowertoolsMetrics", instead="pass `metrics`, such as NoMetrics()"):
    from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from grantwire_idempotency.metrics import CheckResult

_NAMESPACE = "Grantwire"
# CloudWatch takes 100 values of a metric from one document. At the hundredth Powertools writes the document at once,
# even if metrics are disabled: stay one below.
_LARGEST_DOCUMENT = 99
# Powertools prints text and line end separately: documents of two threads must not mix.
_WRITING = threading.Lock()


class PowertoolsMetrics:
    """Writes CloudWatch metrics as log lines (EMF): for each call or batch one line, and one for each result.

        idempotency_check_total{job, result}      Sum: how many checks were answered with new, duplicate or error
        idempotency_check_duration_seconds{job}   how long the store took to answer
        idempotency_duplicate_rate{job}           0 or 1 for each answer: the average of a period is its rate
        idempotency_unguarded_total{job}          Sum: runs without the store's word

    Unless it is given, `namespace` is POWERTOOLS_METRICS_NAMESPACE, else Grantwire. Powertools' other switches work
    too. All instances of Powertools' `Metrics` share one state. This collector has its own, so neither it nor the
    function around it sees the other's dimensions and values. For any number of threads.
    """

    def __init__(self, namespace: str | None = None) -> None:
        # Without a service, which would become a dimension of every metric.
        self._document = EphemeralMetrics(namespace=namespace, service="")
        self._document.namespace = self._document.namespace or _NAMESPACE
        self._lock = threading.Lock()
        self._checks: dict[str, list[tuple[CheckResult, float]]] = defaultdict(list)
        self._unguarded: Counter[str] = Counter()

    def checked(self, name: str, result: CheckResult, seconds: float) -> None:
        """See `IdempotencyMetrics`."""
        with self._lock:
            self._checks[name].append((result, seconds))

    def unguarded(self, name: str) -> None:
        """See `IdempotencyMetrics`."""
        with self._lock:
            self._unguarded[name] += 1

    def flush(self) -> None:
        """Write what was counted since the last time."""
        with self._lock:
            checks, self._checks = self._checks, defaultdict(list)
            unguarded, self._unguarded = self._unguarded, Counter()
        with _WRITING:
            for job in checks.keys() | unguarded.keys():
                self._write_job(job, checks[job], unguarded[job])
                self._write_totals(job, checks[job])

    def _write_job(self, job: str, checks: Sequence[tuple[CheckResult, float]], unguarded: int) -> None:
        """Write what has the job alone for a dimension."""
        for start in range(0, len(checks), _LARGEST_DOCUMENT) or (0,):
            with self._written(job=job) as document:
                for result, seconds in checks[start : start + _LARGEST_DOCUMENT]:
                    document.add_metric("idempotency_check_duration_seconds", MetricUnit.Seconds, seconds)
                    if result != "error":
                        rate = float(result == "duplicate")
                        document.add_metric("idempotency_duplicate_rate", MetricUnit.NoUnit, rate)
                if unguarded and start == 0:
                    document.add_metric("idempotency_unguarded_total", MetricUnit.Count, unguarded)

    def _write_totals(self, job: str, checks: Sequence[tuple[CheckResult, float]]) -> None:
        """Write the sum of each result, which is one more dimension and so needs a document of its own."""
        for result, total in Counter(result for result, _ in checks).items():
            with self._written(job=job, result=result) as document:
                document.add_metric("idempotency_check_total", MetricUnit.Count, total)

    @contextmanager
    def _written(self, **dimensions: str) -> Iterator[EphemeralMetrics]:
        """A document with these dimensions, written at the end and empty again, even if metrics are disabled."""
        try:
            for name, value in dimensions.items():
                self._document.add_dimension(name, value)
            yield self._document
            self._document.flush_metrics()
        finally:
            self._document.clear_metrics()
