"""Metrics for OpenTelemetry: the values go to the meter provider of the application, which exports them.

Run it: python opentelemetry_metrics.py

    idempotency.check new orders 1
    idempotency.check duplicate orders 1
"""

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from grantwire_idempotency import MemoryStore, OpenTelemetryMetrics, idempotent

reader = InMemoryMetricReader()  # in production: a PeriodicExportingMetricReader with an exporter
metrics = OpenTelemetryMetrics(MeterProvider([reader]))  # or OpenTelemetryMetrics(), for the global provider


@idempotent(MemoryStore(), key=lambda order: order, name="orders", metrics=metrics)
def process(order: str) -> str:
    return order


if __name__ == "__main__":
    process("o-1")
    process("o-1")
    data: Any = reader.get_metrics_data()
    checks = data.resource_metrics[0].scope_metrics[0].metrics[0]
    for point in checks.data.data_points:
        print(checks.name, point.attributes["idempotency.result"], point.attributes["idempotency.job"], point.value)
