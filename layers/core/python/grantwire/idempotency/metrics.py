"""What is counted about idempotency (C11)."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter, defaultdict
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, Protocol

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit
from aws_lambda_powertools.metrics.functions import is_metrics_disabled

from grantwire.observability import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CheckResult = Literal["new", "duplicate", "error"]

# An array in the embedded metric format holds no more values than this.
_MOST_VALUES = 100


class IdempotencyMetrics(Protocol):
    """Is told of every check; whoever runs checks flushes once for each call or batch."""

    def checked(self, name: str, result: CheckResult, seconds: float) -> None:
        """A store was asked, for the job or consumer `name`; one that is in progress counts as a duplicate."""

    def unguarded(self, name: str) -> None:
        """Work was done without the store's word: it was down, and the fail mode is OPEN."""

    def flush(self) -> None:
        """Send what was counted."""


class NoMetrics:
    """Counts nothing."""

    def checked(self, name: str, result: CheckResult, seconds: float) -> None:
        """See `IdempotencyMetrics`."""

    def unguarded(self, name: str) -> None:
        """See `IdempotencyMetrics`."""

    def flush(self) -> None:
        """See `IdempotencyMetrics`."""


class EmfMetrics:
    """Writes CloudWatch metrics as log lines (EMF), as few as can be: mostly one for each call or batch.

        idempotency_check_total{job, result}      Sum: how many checks were answered with new, duplicate or error
        idempotency_check_duration_seconds{job}   how long the store took to answer
        idempotency_duplicate_rate{job}           0 or 1 for each answer: the average of a period is its rate
        idempotency_unguarded_total{job}          Sum: runs without the store's word

    It has nothing in common with the collector of the function around it: neither sees the other's dimensions, and a
    function may use Powertools' Metrics as it likes. For any number of threads.
    """

    def __init__(self, namespace: str = "Grantwire") -> None:
        # No service: it would become a dimension of every metric.
        self._emf = EphemeralMetrics(namespace=namespace, service="")
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
        """Write what was counted since the last time, unless Powertools' environment variables switch metrics off."""
        with self._lock:
            checks, self._checks = self._checks, defaultdict(list)
            unguarded, self._unguarded = self._unguarded, Counter()
        if is_metrics_disabled():
            return
        for job in checks.keys() | unguarded.keys():
            for line in self._lines(job, checks[job], unguarded[job]):
                sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")

    def _lines(self, job: str, checks: list[tuple[CheckResult, float]], unguarded: int) -> Iterator[dict[str, Any]]:
        """A line has one value for each dimension, so each result needs its own; the job's values fill them up."""
        totals = Counter(result for result, _ in checks)
        parts = [checks[start : start + _MOST_VALUES] for start in range(0, len(checks), _MOST_VALUES)] or [[]]
        for total, part in zip_longest(totals.items(), parts):
            metrics = []
            if part:
                seconds = [value for _, value in part]
                metrics.append(_metric("idempotency_check_duration_seconds", MetricUnit.Seconds, seconds))
            if answered := [float(result == "duplicate") for result, _ in part or () if result != "error"]:
                metrics.append(_metric("idempotency_duplicate_rate", MetricUnit.NoUnit, answered))
            if unguarded:
                metrics.append(_metric("idempotency_unguarded_total", MetricUnit.Count, [float(unguarded)]))
                unguarded = 0
            directives = [self._serialized(metrics, {"job": job})] if metrics else []
            if total:
                count = _metric("idempotency_check_total", MetricUnit.Count, [float(total[1])])
                directives.append(self._serialized([count], {"job": job, "result": total[0]}))
            yield _joined(directives)

    def _serialized(self, metrics: list[tuple[str, Any]], dimensions: dict[str, str]) -> dict[str, Any]:
        return dict(self._emf.serialize_metric_set(metrics=dict(metrics), dimensions=dimensions, metadata={}))


class Quiet:
    """Passes everything on; what fails there is logged: counting is never a reason to lose work."""

    def __init__(self, metrics: IdempotencyMetrics) -> None:
        self._metrics = metrics

    def checked(self, name: str, result: CheckResult, seconds: float) -> None:
        """See `IdempotencyMetrics`."""
        self._try(lambda: self._metrics.checked(name, result, seconds))

    def unguarded(self, name: str) -> None:
        """See `IdempotencyMetrics`."""
        self._try(lambda: self._metrics.unguarded(name))

    def flush(self) -> None:
        """See `IdempotencyMetrics`."""
        self._try(self._metrics.flush)

    def _try(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception:  # noqa: BLE001 - an author's metrics may fail in any way
            log.exception("idempotency metrics failed")


def _metric(name: str, unit: MetricUnit, values: list[float]) -> tuple[str, Any]:
    return name, {"Unit": unit.value, "Value": values}


def _joined(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """One line with the metrics of several, each with its own dimensions."""
    joined: dict[str, Any] = {}
    directives = [directive for one in documents for directive in one["_aws"]["CloudWatchMetrics"]]
    for one in documents:
        joined |= one
    joined["_aws"] = {"Timestamp": documents[0]["_aws"]["Timestamp"], "CloudWatchMetrics": directives}
    return joined
