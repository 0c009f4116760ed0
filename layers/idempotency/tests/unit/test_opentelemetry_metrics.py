"""C11, C29: the metrics that a reader of OpenTelemetry receives."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from grantwire_idempotency import FailMode, MemoryStore, OpenTelemetryMetrics, idempotent
from grantwire_idempotency.errors import RetryableError
from layers.idempotency.tests.unit.doubles import FailingStore


class Received:
    """A meter provider, and what its reader has received."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])

    def read(self) -> dict[str, Any]:
        """Return each metric by its name."""
        data = self._reader.get_metrics_data()
        scopes = (
            [] if data is None else [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        )
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def points(self, name: str) -> dict[tuple[Any, ...], Any]:
        """Return the points of a metric by the values of their attributes."""
        return {tuple(point.attributes.values()): point for point in self.read()[name].data.data_points}


@pytest.fixture
def received() -> Received:
    """Return an empty reader."""
    return Received()


def test_checks_are_counted_by_job_and_result(received: Received) -> None:
    """C11: with the units that an exporter for Prometheus turns into the names of the other metrics."""
    metrics = OpenTelemetryMetrics(received.provider)
    for result in ("new", "duplicate", "duplicate", "error"):
        metrics.record_check("orders", result, 0.004)
    metrics.record_check("mails", "new", 2)
    metrics.record_unguarded_run("mails")
    metrics.flush()
    checks = {attributes: point.value for attributes, point in received.points("idempotency.check").items()}
    assert checks == {("orders", "new"): 1, ("orders", "duplicate"): 2, ("orders", "error"): 1, ("mails", "new"): 1}
    assert {attributes: point.value for attributes, point in received.points("idempotency.unguarded").items()} == {
        ("mails",): 1
    }
    units = {name: metric.unit for name, metric in received.read().items()}
    assert units == {
        "idempotency.check": "{check}",
        "idempotency.check.duration": "s",
        "idempotency.unguarded": "{run}",
    }


def test_duration_has_buckets_for_a_store(received: Received) -> None:
    """C29: the default buckets of the SDK are for milliseconds and would contain all values in one."""
    metrics = OpenTelemetryMetrics(received.provider)
    for seconds in (0.0004, 0.003, 0.03, 0.3, 3):
        metrics.record_check("orders", "new", seconds)
    point = received.points("idempotency.check.duration")["orders",]
    assert isinstance(point, HistogramDataPoint)
    assert point.count == 5
    assert point.sum == pytest.approx(3.3334)
    assert max(point.bucket_counts) == 1


def test_number_of_attributes_does_not_grow_with_the_keys(received: Received) -> None:
    """C29: a job reports its name and results, and never a key; also while the store is unavailable."""
    store = FailingStore(MemoryStore())

    @idempotent(store, key=str, name="orders", metrics=OpenTelemetryMetrics(received.provider), fail_mode=FailMode.OPEN)
    def process(order: int) -> int:
        return order

    for order in (*range(50), *range(50)):
        process(order)
    store.failing["check"] = [RetryableError("down")] * 2
    process(1)
    assert {attributes: point.value for attributes, point in received.points("idempotency.check").items()} == {
        ("orders", "new"): 50,
        ("orders", "duplicate"): 50,
        ("orders", "error"): 1,
    }
    names = {
        name for metric in received.read().values() for point in metric.data.data_points for name in point.attributes
    }
    assert names == {"idempotency.job", "idempotency.result"}


def test_without_a_provider_nothing_is_recorded_and_nothing_fails() -> None:
    """C29: the application has not set a global provider."""
    metrics = OpenTelemetryMetrics()
    metrics.record_check("orders", "new", 0.1)
    metrics.record_unguarded_run("orders")
    metrics.flush()
