"""Metrics in CloudWatch's embedded format: a document with values, and beside them what they are."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from grantwire.observability.lines import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# CloudWatch takes no more values of one metric from one document.
_MOST_VALUES = 100


class MetricUnit(StrEnum):
    """CloudWatch's names for what is counted."""

    Count = "Count"
    Seconds = "Seconds"
    Milliseconds = "Milliseconds"


def stamped(directive: str) -> str:
    """The member that makes a line a document of metrics, of now."""
    return f'"_aws":{{"Timestamp":{time.time_ns() // 1_000_000},"CloudWatchMetrics":{directive}}}'


class Metrics:
    """Collects values, and writes them with `emit` when they are flushed; each carries the default dimensions."""

    def __init__(self, namespace: str, *, service: str, emit: Callable[[dict[str, Any], str], None]) -> None:
        self._namespace = namespace
        self._service = service
        self._emit = emit
        self._dimensions: dict[str, str] = {}
        self.metric_set: dict[str, dict[str, Any]] = {}

    def set_default_dimensions(self, **dimensions: str) -> None:
        """What all values have in common."""
        self._dimensions.update(dimensions)

    def add_metric(self, name: str, unit: MetricUnit, value: float) -> None:
        """One value more; a full collector is flushed."""
        metric = self.metric_set.setdefault(name, {"Unit": unit.value, "Value": []})
        metric["Value"].append(float(value))
        if len(metric["Value"]) >= _MOST_VALUES:
            self.flush_metrics()

    def flush_metrics(self) -> None:
        """Write what was collected, if anything was."""
        collected, self.metric_set = self.metric_set, {}
        if collected:
            directive = self.directive(self._dimensions, {name: metric["Unit"] for name, metric in collected.items()})
            values = {name: metric["Value"] for name, metric in collected.items()}
            self._emit({"service": self._service, **self._dimensions, **values}, stamped(directive))

    def directive(self, dimensions: Iterable[str], units: dict[str, str]) -> str:
        """What tells CloudWatch which members of a line are metrics, and which are their dimensions."""
        named = [{"Name": name, "Unit": unit} for name, unit in units.items()]
        return encode([{"Namespace": self._namespace, "Dimensions": [[*dimensions, "service"]], "Metrics": named}])

    def clear_metrics(self) -> None:
        """Forget what was collected."""
        self.metric_set = {}

    def clear_default_dimensions(self) -> None:
        """Forget what all values had in common."""
        self._dimensions = {}
