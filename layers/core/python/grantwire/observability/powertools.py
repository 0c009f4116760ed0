"""Configuration of Powertools' Logger and Metrics (ADR 0024)."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import nullcontext
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.logging.exceptions import InvalidLoggerSamplingRateError
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit, single_metric
from aws_lambda_powertools.metrics.functions import is_metrics_disabled

from grantwire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from aws_lambda_powertools.metrics import MetricResolution

__all__ = ["LineMetrics", "MetricUnit", "begin_invocation", "configure", "logger", "metrics", "write_metric"]

T = TypeVar("T")

# The idempotency library uses standard logging. Unlike other libraries, it may log at DEBUG.
_IDEMPOTENCY_LOGGER = "grantwire_idempotency"

_NOTHING_COUNTED: Mapping[str, Sequence[str]] = MappingProxyType({})

# The output is ASCII and values of any type are accepted, so that no text of a caller and no field prevents a log line.
_encode = json.JSONEncoder(separators=(",", ":"), default=str, skipkeys=True).encode


@cache
def _output() -> logging.Handler:
    """Return the handler that writes all log lines."""
    return logging.StreamHandler(sys.stdout)


class LineMetrics(EphemeralMetrics):
    """A metrics collector that writes each document as one line and keeps no state between documents.

    It extends EphemeralMetrics because all instances of Powertools' `Metrics` share one state. Every write holds the
    lock of the log handler, for two reasons: Powertools prints a document and its line break separately, and
    `add_metric` flushes on its own at 100 values. Without the lock, lines of threads could mix and values be lost.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        super().__init__()
        self.lock = lock
        self.disabled = is_metrics_disabled()

    def write_document(
        self,
        metrics: dict[str, dict[str, Any]],
        *,
        dimensions: dict[str, str],
        metadata: dict[str, Any],
        counted: Mapping[str, Sequence[str]] = _NOTHING_COUNTED,
    ) -> None:
        """Write one document directly, without the collector; `dimensions` must contain `service`.

        A request uses this, because all its values are known together. `metrics` has the format of Powertools'
        `metric_set`: `{"Latency": {"Unit": "Milliseconds", "Value": [1.5]}}`. `counted` are further metrics with the
        value 1 and dimensions of their own: each is the name of a dimension or of a text field in `metadata`.
        """
        if self.disabled:
            return
        document: dict[str, Any] = {**self.serialize_metric_set(metrics, dimensions, metadata)}
        for name, fields in counted.items():
            document[name] = [1.0]
            document["_aws"]["CloudWatchMetrics"].append(
                {
                    "Namespace": self.namespace,
                    "Dimensions": [list(fields)],
                    "Metrics": [{"Name": name, "Unit": MetricUnit.Count.value}],
                }
            )
        with self.lock:
            sys.stdout.write(_encode(document) + "\n")
            sys.stdout.flush()

    def add_metric(
        self, name: str, unit: MetricUnit | str, value: float, resolution: MetricResolution | int = 60
    ) -> None:
        """Add a value. If the collector is full, write it; the dimensions stay for the values that follow."""
        with self.lock:
            super().add_metric(name, unit, value, resolution)

    def flush_metrics(self, raise_on_empty_metrics: bool = False) -> None:
        """Write the collected values, if any, then clear values, dimensions and metadata."""
        with self.lock:
            try:
                if self.metric_set or raise_on_empty_metrics:
                    super().flush_metrics(raise_on_empty_metrics)
                    sys.stdout.flush()
            finally:
                if self.metric_set or self.metadata_set or self.dimension_set:
                    self.clear_metrics()


@cache
def _metrics() -> LineMetrics:
    """Create the metrics collector; Powertools reads namespace and service from the environment."""
    metrics = LineMetrics(_output().lock or nullcontext())
    metrics.namespace = metrics.namespace or "Grantwire"
    metrics.service = metrics.service or "grantwire"
    return metrics


@cache
def _logger() -> Logger:
    """Create the logger; Powertools reads level and sampling rate from the environment."""
    return Logger(
        service=_metrics().service,
        logger_handler=_output(),
        json_serializer=_encode,
        use_rfc3339=True,  # Lambda reads the level only of lines with an RFC 3339 timestamp
        utc=True,
        serialize_stacktrace=False,  # `exception` contains it as text
        name="%(name)s",
    )


class _LazyProxy(Generic[T]):
    """A proxy for an object that is created on first use. It caches the bound methods that were used."""

    def __init__(self, create: Callable[[], T]) -> None:
        self._create = create

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._create(), name)
        if callable(attribute):
            setattr(self, name, attribute)
        return attribute


logger = cast("Logger", _LazyProxy(_logger))
metrics = cast("LineMetrics", _LazyProxy(_metrics))


def write_metric(name: str, unit: MetricUnit, value: float) -> None:
    """Write one metric as a separate document.

    `service` is its only dimension, so that one alarm covers all workers.
    """
    collector = _metrics()
    if collector.disabled:
        return
    dimensions = {"service": str(collector.service)}
    with collector.lock:
        with single_metric(
            name=name, unit=unit, value=value, namespace=collector.namespace, default_dimensions=dimensions
        ):
            pass
        sys.stdout.flush()


def configure(environ: Mapping[str, str]) -> None:
    """Create the logger and the metrics collector, and log all other libraries in the same format.

    Raises ConfigError that names an invalid variable. It replaces the handlers of the root logger, so the process must
    be a Grantwire function. The level is always POWERTOOLS_LOG_LEVEL. Powertools would prefer the log level that is
    configured in Lambda, but that must stay at INFO or below: Lambda treats a metrics document as an INFO line and
    drops it above that level.
    """
    level_name = environ.get("POWERTOOLS_LOG_LEVEL") or "INFO"
    level = logging.getLevelNamesMapping().get(level_name)
    if level is None:
        raise ConfigError([f"POWERTOOLS_LOG_LEVEL must be DEBUG, INFO, WARNING or ERROR, not {level_name!r}"])
    try:
        _metrics().disabled = is_metrics_disabled()
        logger = _logger()
        logger.initial_log_level = level_name
        logger.refresh_sample_rate_calculation()
    except (ValueError, InvalidLoggerSamplingRateError) as error:
        raise ConfigError([f"Powertools cannot read its environment variables: {error}"]) from error
    # Other libraries never log at DEBUG: botocore's DEBUG lines contain the secrets that it reads.
    logging.basicConfig(handlers=[_output()], level=max(level, logging.INFO), force=True)
    logging.getLogger(logger.name).propagate = False
    logging.getLogger(_IDEMPOTENCY_LOGGER).setLevel(level)
    logging.getLogger("botocore.credentials").setLevel(logging.WARNING)  # INFO has a line for each new client
    logging.captureWarnings(capture=True)


def begin_invocation(**keys: object) -> None:
    """Add `keys` to every log line of this invocation, and decide whether its DEBUG lines are sampled."""
    logger = _logger()
    if logger.sampling_rate:
        logger.refresh_sample_rate_calculation()
    logger.append_keys(**keys)
