"""The wiring of Powertools' Logger and Metrics (ADR 0024)."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.logging.exceptions import InvalidLoggerSamplingRateError
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit, single_metric
from aws_lambda_powertools.metrics.functions import is_metrics_disabled

from grantwire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from aws_lambda_powertools.metrics import MetricResolution

__all__ = ["LineMetrics", "MetricUnit", "begin_invocation", "configure", "logger", "metrics", "write_metric"]

T = TypeVar("T")

# The idempotency library is ours and uses standard logging: it follows the service's level down to DEBUG.
_LIBRARY = "grantwire_idempotency"

# Only ASCII, and anything can be written: a line must not be lost to a caller's text or to the type of a field.
_encode = json.JSONEncoder(separators=(",", ":"), default=str, skipkeys=True).encode


@cache
def _output() -> logging.Handler:
    """Return the one handler that writes every line."""
    return logging.StreamHandler(sys.stdout)


class LineMetrics(EphemeralMetrics):
    """Powertools' metrics, whose every document is one whole line and leaves nothing behind for the next one.

    The ephemeral kind, because all instances of Powertools' `Metrics` share one state. Powertools prints a document
    and the end of its line separately, and a collector of 100 values flushes itself in `add_metric`: both hold the
    lock of the log's handler, so that lines of other threads stay lines and no value is lost between two threads.
    """

    def __init__(self, writing: AbstractContextManager[Any]) -> None:
        super().__init__()
        self.writing = writing
        self.disabled = is_metrics_disabled()

    @contextmanager
    def line(self) -> Iterator[None]:
        """Write what is added inside as one line, also after an exception."""
        with self.writing:
            try:
                yield
            finally:
                self.flush_metrics()

    def write_document(
        self, metrics: dict[str, dict[str, Any]], *, dimensions: dict[str, str], metadata: dict[str, Any]
    ) -> None:
        """Write one document at once, past the collector; its dimensions must contain `service`.

        For a request, which knows all of its values at the same time. `metrics` has the form of Powertools'
        `metric_set`: `{"Latency": {"Unit": "Milliseconds", "Value": [1.5]}}`.
        """
        if self.disabled:
            return
        document = self.serialize_metric_set(metrics, dimensions, metadata)
        with self.writing:
            sys.stdout.write(_encode(document) + "\n")
            sys.stdout.flush()

    def add_metric(
        self, name: str, unit: MetricUnit | str, value: float, resolution: MetricResolution | int = 60
    ) -> None:
        """Add a value; the one that fills the collector writes it, with the same dimensions."""
        with self.writing:
            super().add_metric(name, unit, value, resolution)

    def flush_metrics(self, raise_on_empty_metrics: bool = False) -> None:
        """Write the collected values, if there are any; values, dimensions and metadata are gone afterwards."""
        with self.writing:
            try:
                if self.metric_set or raise_on_empty_metrics:
                    super().flush_metrics(raise_on_empty_metrics)
                    sys.stdout.flush()
            finally:
                if self.metric_set or self.metadata_set or self.dimension_set:
                    self.clear_metrics()


@cache
def _metrics() -> LineMetrics:
    """Create the collector; Powertools reads its namespace and service from the environment."""
    metrics = LineMetrics(_output().lock or nullcontext())
    metrics.namespace = metrics.namespace or "Grantwire"
    metrics.service = metrics.service or "grantwire"
    return metrics


@cache
def _logger() -> Logger:
    """Create the logger; Powertools reads its level and sampling rate from the environment."""
    return Logger(
        service=_metrics().service,
        logger_handler=_output(),
        json_serializer=_encode,
        use_rfc3339=True,  # Lambda reads a line's level only beside such a timestamp
        utc=True,
        serialize_stacktrace=False,  # `exception` has it as text
        name="%(name)s",
    )


class _Lazy(Generic[T]):
    """Stands for an object that is created when it is first used; its methods are then called directly."""

    def __init__(self, create: Callable[[], T]) -> None:
        self._create = create

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._create(), name)
        if callable(found):
            setattr(self, name, found)
        return found


logger = cast("Logger", _Lazy(_logger))
metrics = cast("LineMetrics", _Lazy(_metrics))


def write_metric(name: str, unit: MetricUnit, value: float) -> None:
    """Write one metric in a line of its own with `service` as its only dimension: one alarm watches all workers."""
    common = _metrics()
    if common.disabled:
        return
    dimensions = {"service": str(common.service)}
    with common.writing:
        with single_metric(
            name=name, unit=unit, value=value, namespace=common.namespace, default_dimensions=dimensions
        ):
            pass
        sys.stdout.flush()


def configure(environ: Mapping[str, str]) -> None:
    """Create both, and write the lines of all other libraries like our own; ConfigError names a bad variable.

    For a process that is ours alone, as a Lambda function is: it replaces the handlers of the root logger. The level is
    POWERTOOLS_LOG_LEVEL whatever Lambda's own level is, which Powertools would prefer: that one must stay at or below
    INFO, because Lambda takes a document of metrics for an INFO line and would drop it.
    """
    name = environ.get("POWERTOOLS_LOG_LEVEL") or "INFO"
    level = logging.getLevelNamesMapping().get(name)
    if level is None:
        raise ConfigError([f"POWERTOOLS_LOG_LEVEL must be DEBUG, INFO, WARNING or ERROR, not {name!r}"])
    try:
        _metrics().disabled = is_metrics_disabled()
        logger = _logger()
        logger.initial_log_level = name
        logger.refresh_sample_rate_calculation()
    except (ValueError, InvalidLoggerSamplingRateError) as error:
        raise ConfigError([f"Powertools cannot read its environment variables: {error}"]) from error
    # Libraries never below INFO: botocore's DEBUG lines contain the secrets that it reads.
    logging.basicConfig(handlers=[_output()], level=max(level, logging.INFO), force=True)
    logging.getLogger(logger.name).propagate = False
    logging.getLogger(_LIBRARY).setLevel(level)
    logging.getLogger("botocore.credentials").setLevel(logging.WARNING)  # else a line for each client that is made
    logging.captureWarnings(capture=True)


def begin_invocation(**keys: object) -> None:
    """Put `keys` on every line of this invocation, and decide anew whether its DEBUG lines are sampled."""
    logger = _logger()
    if logger.sampling_rate:
        logger.refresh_sample_rate_calculation()
    logger.append_keys(**keys)
