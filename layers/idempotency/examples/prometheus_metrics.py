"""Metrics for Prometheus instead of CloudWatch: an object with the three methods of IdempotencyMetrics.

Run it: python prometheus_metrics.py

    idempotency_check_total{job="orders",result="new"} 1.0
    idempotency_check_total{job="orders",result="duplicate"} 1.0
"""

from prometheus_client import Counter, Histogram, generate_latest

from grantwire_idempotency import MemoryStore, idempotent

CHECKS = Counter("idempotency_check_total", "Checks", ["job", "result"])
SECONDS = Histogram("idempotency_check_duration_seconds", "Response time of the store", ["job"])
UNGUARDED = Counter("idempotency_unguarded_total", "Runs without a claim", ["job"])


class PrometheusMetrics:
    def record_check(self, name: str, result: str, seconds: float) -> None:
        CHECKS.labels(name, result).inc()
        SECONDS.labels(name).observe(seconds)

    def record_unguarded_run(self, name: str) -> None:
        UNGUARDED.labels(name).inc()

    def flush(self) -> None:
        """Prometheus reads the values itself."""


@idempotent(MemoryStore(), key=lambda order: order, name="orders", metrics=PrometheusMetrics())
def process(order: str) -> str:
    return order


if __name__ == "__main__":
    process("o-1")
    process("o-1")
    lines = generate_latest().decode().splitlines()
    print(*(line for line in lines if line.startswith("idempotency_check_total")), sep="\n")
