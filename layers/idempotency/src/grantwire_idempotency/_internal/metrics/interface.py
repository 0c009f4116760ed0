"""The interface for idempotency metrics (C11), and its implementation for CloudWatch's embedded metric format (EMF).

idempotency_check_total{job, result}      number of checks with the result new, duplicate or error; use Sum
idempotency_check_duration_seconds{job}   response time of the store
idempotency_duplicate_rate{job}           0 or 1 for each check; use Average
idempotency_unguarded_total{job}          number of runs without a claim; use Sum
"""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Literal, Protocol

from grantwire_idempotency._internal.foundation.forks import ForkSafeLock
from grantwire_idempotency._internal.foundation.logs import logger as default_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger

    Checks = Sequence[tuple["CheckLabel", float]]

DEFAULT_NAMESPACE = "Grantwire"
# CloudWatch accepts 100 values of a metric in one document. Powertools writes the document when it gets the hundredth
# value, even if metrics are disabled, so stop at 99.
MAX_VALUES_PER_DOCUMENT = 99
# The text and its line end are two writes, so two threads must not write at the same time.
_WRITE_LOCK = ForkSafeLock()

CheckLabel = Literal["new", "duplicate", "error"]


class IdempotencyMetrics(Protocol):
    """Receives every check. `flush` is called once for each call or batch."""

    def record_check(self, name: str, result: CheckLabel, seconds: float) -> None:
        """Count a check for the job or consumer `name`. A key that is in progress counts as a duplicate."""

    def record_unguarded_run(self, name: str) -> None:
        """Count a run without a claim: the store was unavailable and the fail mode is OPEN."""

    def flush(self) -> None:
        """Send the metrics that were counted since the last flush."""


class NoMetrics:
    """Discards all metrics."""

    def record_check(self, name: str, result: CheckLabel, seconds: float) -> None:
        """See `IdempotencyMetrics`."""

    def record_unguarded_run(self, name: str) -> None:
        """See `IdempotencyMetrics`."""

    def flush(self) -> None:
        """See `IdempotencyMetrics`."""


class SafeMetrics:
    """Forwards all metrics and logs errors, so that a failure of the metrics never fails the work."""

    def __init__(self, metrics: IdempotencyMetrics, logger: LibraryLogger = default_logger) -> None:
        self._metrics = metrics
        self._logger = logger

    def record_check(self, name: str, result: CheckLabel, seconds: float) -> None:
        """See `IdempotencyMetrics`."""
        try:
            self._metrics.record_check(name, result, seconds)
        except Exception:
            logger = self._logger
            logger.exception("could not write idempotency metrics")

    def record_unguarded_run(self, name: str) -> None:
        """See `IdempotencyMetrics`."""
        try:
            self._metrics.record_unguarded_run(name)
        except Exception:
            logger = self._logger
            logger.exception("could not write idempotency metrics")

    def flush(self) -> None:
        """See `IdempotencyMetrics`."""
        try:
            self._metrics.flush()
        except Exception:
            logger = self._logger
            logger.exception("could not write idempotency metrics")


class BufferedMetrics(ABC):
    """Collects the metrics of a call or batch and writes them at the flush. Thread-safe."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
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
                for start in range(0, len(checks[job]), MAX_VALUES_PER_DOCUMENT) or (0,):
                    part = checks[job][start : start + MAX_VALUES_PER_DOCUMENT]
                    self.write_job(job, part, unguarded[job] if start == 0 else 0)
                for result, total in Counter(result for result, _ in checks[job]).items():
                    self.write_total(job, result, total)

    @abstractmethod
    def write_job(self, job: str, checks: Checks, unguarded: int) -> None:
        """Write the metrics whose only dimension is the job."""

    @abstractmethod
    def write_total(self, job: str, result: CheckLabel, total: int) -> None:
        """Write the number of checks with one result, which is a second dimension and needs its own document."""


class EmfMetrics(BufferedMetrics):
    """Writes CloudWatch metrics as lines of JSON in the embedded metric format, without a call to AWS.

    Each call or batch writes one line, and one more for each result. `namespace` defaults to
    POWERTOOLS_METRICS_NAMESPACE, then to Grantwire. `write` gets each line; the default prints it.
    """

    def __init__(self, namespace: str | None = None, *, write: Callable[[str], object] | None = None) -> None:
        super().__init__()
        environment = os.environ.get("POWERTOOLS_METRICS_NAMESPACE")  # noqa: TID251 - as Powertools does
        self._namespace = namespace or environment or DEFAULT_NAMESPACE
        self._write = _print_line if write is None else write

    def write_job(self, job: str, checks: Checks, unguarded: int) -> None:
        """See `BufferedMetrics`."""
        values: dict[str, tuple[str, Any]] = {}
        if checks:
            values["idempotency_check_duration_seconds"] = ("Seconds", [seconds for _, seconds in checks])
        if rates := [float(result == "duplicate") for result, _ in checks if result != "error"]:
            values["idempotency_duplicate_rate"] = ("None", rates)
        if unguarded:
            values["idempotency_unguarded_total"] = ("Count", [float(unguarded)])
        self._write_document({"job": job}, values)

    def write_total(self, job: str, result: CheckLabel, total: int) -> None:
        """See `BufferedMetrics`."""
        self._write_document({"job": job, "result": result}, {"idempotency_check_total": ("Count", [float(total)])})

    def _write_document(self, dimensions: dict[str, str], values: dict[str, tuple[str, Any]]) -> None:
        metrics = [{"Name": name, "Unit": unit} for name, (unit, _) in values.items()]
        directive = {"Namespace": self._namespace, "Dimensions": [list(dimensions)], "Metrics": metrics}
        document = {
            "_aws": {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]},
            **dimensions,
            **{name: numbers for name, (_, numbers) in values.items()},
        }
        self._write(json.dumps(document, separators=(",", ":")))


def default_metrics() -> IdempotencyMetrics:
    """Return EmfMetrics in a Lambda function, where CloudWatch reads the output, and NoMetrics elsewhere."""
    in_lambda = os.environ.get("AWS_LAMBDA_FUNCTION_NAME")  # noqa: TID251 - set by Lambda
    return EmfMetrics() if in_lambda else NoMetrics()


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
