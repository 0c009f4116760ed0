"""C11: the metrics that CloudWatch receives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from aws_lambda_powertools.metrics import Metrics, MetricUnit

from grantwire_idempotency import MemoryStore, NoMetrics, PowertoolsMetrics, idempotent
from tests.support.concurrency import run_concurrently

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grantwire_idempotency._internal.metrics.interface import CheckLabel


class CloudWatch:
    """Reads EMF lines like CloudWatch: each directive takes its metrics and dimensions from the root of the line."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = [json.loads(line) for line in lines]
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
        self.units: dict[str, str] = {}
        self.namespaces: set[str] = set()
        for line in self.lines:
            for directive in line["_aws"]["CloudWatchMetrics"]:
                self.namespaces.add(directive["Namespace"])
                for names in directive["Dimensions"]:
                    self._read(line, directive, tuple((name, line[name]) for name in sorted(names)))

    def _read(self, line: dict[str, Any], directive: dict[str, Any], dimensions: tuple[tuple[str, str], ...]) -> None:
        for metric in directive["Metrics"]:
            values = line[metric["Name"]]
            assert 1 <= len(values) <= 100, "CloudWatch drops the metric"
            self.units[metric["Name"]] = metric["Unit"]
            self.values.setdefault((metric["Name"], dimensions), []).extend(values)

    def get_values(self, name: str, **dimensions: str) -> list[float]:
        """Return the values of a metric with exactly these dimensions."""
        return self.values.get((name, tuple(sorted(dimensions.items()))), [])


def record_checks(capsys: pytest.CaptureFixture[str], checks: Iterable[tuple[str, CheckLabel]]) -> CloudWatch:
    """Return what CloudWatch received for these checks of 0.1 s each."""
    metrics = PowertoolsMetrics()
    for job, result in checks:
        metrics.record_check(job, result, 0.1)
    metrics.flush()
    return CloudWatch(capsys.readouterr().out.splitlines())


def test_check_writes_documented_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    """C11, 004: the total by result is in one document; duration and duplicate rate are in another."""
    received = record_checks(capsys, [("orders", "duplicate")])
    assert len(received.lines) == 2
    assert received.namespaces == {"Grantwire"}
    assert received.get_values("idempotency_check_total", job="orders", result="duplicate") == [1.0]
    assert received.get_values("idempotency_check_duration_seconds", job="orders") == [0.1]
    assert received.get_values("idempotency_duplicate_rate", job="orders") == [1.0]
    assert received.units == {
        "idempotency_check_total": "Count",
        "idempotency_check_duration_seconds": "Seconds",
        "idempotency_duplicate_rate": "None",
    }
    assert len(received.values) == 3


def test_batch_writes_one_line_and_one_per_result(capsys: pytest.CaptureFixture[str]) -> None:
    """C11: totals are summed by result; the average rate is the share of duplicates."""
    counts: dict[CheckLabel, int] = {"new": 6, "duplicate": 2, "error": 4}
    received = record_checks(capsys, [("orders", result) for result, count in counts.items() for _ in range(count)])
    assert len(received.lines) == 4
    totals = {name: received.get_values("idempotency_check_total", job="orders", result=name) for name in counts}
    assert totals == {"new": [6.0], "duplicate": [2.0], "error": [4.0]}
    rate = received.get_values("idempotency_duplicate_rate", job="orders")
    assert sum(rate) / len(rate) == 0.25
    assert len(received.get_values("idempotency_check_duration_seconds", job="orders")) == 12


@pytest.mark.parametrize(("count", "lines"), [(99, 2), (100, 3), (101, 3), (198, 3), (1_000, 12)])
def test_line_has_at_most_100_values(count: int, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    """C11: CloudWatch accepts at most 100 values in an array, and none is lost."""
    received = record_checks(capsys, [("orders", "new")] * count)
    assert len(received.lines) == lines
    assert sum(received.get_values("idempotency_check_total", job="orders", result="new")) == count
    assert len(received.get_values("idempotency_check_duration_seconds", job="orders")) == count
    assert received.get_values("idempotency_duplicate_rate", job="orders") == [0.0] * count


def test_unguarded_runs_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """C6, C10: runs without a claim are counted, with the failed check in the same document or alone."""
    metrics = PowertoolsMetrics("Shop")
    for _ in range(120):
        metrics.record_check("orders", "error", 0.1)
        metrics.record_unguarded_run("orders")
    metrics.record_check("orders", "new", 0.1)
    metrics.record_unguarded_run("reports")
    metrics.flush()
    received = CloudWatch(capsys.readouterr().out.splitlines())
    assert received.get_values("idempotency_unguarded_total", job="orders") == [120.0], "in the first document only"
    assert received.get_values("idempotency_unguarded_total", job="reports") == [1.0]
    assert received.get_values("idempotency_duplicate_rate", job="orders") == [0.0], "an error does not count"
    assert len(received.lines) == 5
    assert received.namespaces == {"Shop"}


def test_jobs_have_separate_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    """One collector can serve several jobs."""
    received = record_checks(capsys, [("orders", "new"), ("reports", "new"), ("orders", "duplicate")])
    assert received.get_values("idempotency_duplicate_rate", job="orders") == [0.0, 1.0]
    assert received.get_values("idempotency_duplicate_rate", job="reports") == [0.0]


def test_flush_writes_only_new_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    """A flush without new metrics writes nothing."""
    metrics = PowertoolsMetrics()
    metrics.flush()
    metrics.record_check("orders", "new", 0.1)
    metrics.flush()
    assert len(CloudWatch(capsys.readouterr().out.splitlines()).values) == 3
    metrics.flush()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("count", [1, 250])
@pytest.mark.parametrize("variable", ["POWERTOOLS_METRICS_DISABLED", "POWERTOOLS_DEV"])
def test_powertools_environment_variables_apply(
    variable: str, count: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If metrics are disabled, none are written, even for a full document, and none accumulate."""
    metrics = PowertoolsMetrics()
    monkeypatch.setenv(variable, "true")
    for _ in range(count):
        metrics.record_check("orders", "new", 0.1)
    metrics.flush()
    monkeypatch.delenv(variable)
    metrics.flush()
    assert capsys.readouterr().out == ""
    metrics.record_check("reports", "new", 0.1)
    metrics.flush()
    assert {line["job"] for line in CloudWatch(capsys.readouterr().out.splitlines()).lines} == {"reports"}


@pytest.mark.parametrize(
    ("argument", "variable", "namespace"), [(None, None, "Grantwire"), (None, "Jobs", "Jobs"), ("Shop", "Jobs", "Shop")]
)
def test_namespace_follows_powertools_precedence(
    argument: str | None,
    variable: str | None,
    namespace: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The argument, else POWERTOOLS_METRICS_NAMESPACE, else the default of the library."""
    if variable:
        monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", variable)
    metrics = PowertoolsMetrics(argument)
    metrics.record_check("orders", "new", 0.1)
    metrics.flush()
    assert CloudWatch(capsys.readouterr().out.splitlines()).namespaces == {namespace}


def test_metrics_of_surrounding_function_are_unaffected(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C11: neither the function's collector nor `log_metrics` gets a dimension or value of the library."""
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "a service")
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders")
    own = Metrics(namespace="Shop", service="shop")
    own.add_dimension("worker", "relay")
    own.add_metric("Published", MetricUnit.Count, 1)

    @own.log_metrics(raise_on_empty_metrics=True)
    @idempotent(MemoryStore(), key=lambda event, _: event["id"], name="orders")
    def handler(event: dict[str, str], _context: object) -> str:
        own.add_metric("Sold", MetricUnit.Count, 1)
        return event["id"]

    handler({"id": "o_1"}, None)
    *ours, theirs = capsys.readouterr().out.splitlines()
    received, others = CloudWatch(ours), CloudWatch([theirs])
    assert received.get_values("idempotency_check_total", job="orders", result="new") == [1.0]
    assert {name for name, _ in received.values} & {"Sold", "Published"} == set()
    assert {name for name, _ in others.values} == {"Sold", "Published"}
    assert "job" not in others.lines[0]
    assert not {"service", "worker"} & {name for line in received.lines for name in line}


def test_collector_is_thread_safe(capsys: pytest.CaptureFixture[str]) -> None:
    """C11: no value is lost while some threads count and others flush."""
    metrics = PowertoolsMetrics()

    def count(_: int) -> None:
        for _ in range(50):
            metrics.record_check("orders", "new", 0.1)
            metrics.record_unguarded_run("orders")
            metrics.flush()

    run_concurrently(8, count)
    received = CloudWatch(capsys.readouterr().out.splitlines())
    assert sum(received.get_values("idempotency_check_total", job="orders", result="new")) == 400
    assert sum(received.get_values("idempotency_unguarded_total", job="orders")) == 400


def test_no_metrics_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """NoMetrics is for tests and for applications with other metrics."""
    idempotent(MemoryStore(), key=str, name="job", metrics=NoMetrics())(lambda order: order)("o_1")
    assert capsys.readouterr().out == ""
