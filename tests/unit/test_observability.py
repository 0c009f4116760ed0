"""What a line of the log says, and what CloudWatch makes of a metric."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from grantwire.observability import MetricUnit
from grantwire.observability.lines import Log
from grantwire.observability.metrics import Metrics, stamped


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def log() -> Log:
    """One of the test's own."""
    return Log("tests", level="INFO")


def test_a_line_says_when_where_and_what(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """The time is RFC 3339 in UTC, which Lambda needs to filter by level."""
    log.append_keys(trace_id="t")
    log.warning("it rains", drops=3)
    (line,) = _lines(capsys)
    assert (line["level"], line["message"], line["service"]) == ("WARNING", "it rains", "tests")
    assert (line["drops"], line["trace_id"]) == (3, "t")
    assert line["location"].startswith("test_a_line_says_when_where_and_what:")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["timestamp"])
    assert abs((datetime.now(UTC) - datetime.fromisoformat(line["timestamp"])).total_seconds()) < 60


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("DEBUG", ["debug", "info", "warning", "error"]),
        ("TRACE", ["debug", "info", "warning", "error"]),
        ("INFO", ["info", "warning", "error"]),
        ("WARN", ["warning", "error"]),
        ("ERROR", ["error"]),
        ("FATAL", []),
        ("nonsense", ["info", "warning", "error"]),
    ],
)
def test_a_level_hides_what_is_below_it(level: str, written: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """By the names of Python and of Lambda; one that nobody knows is INFO, because a log must not be lost to a typo."""
    log = Log("tests", level=level)
    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)(name)
    assert [line["message"] for line in _lines(capsys)] == written


def test_an_exception_is_named_and_traced(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """With its cause, as Python shows it; one that is handed over is not the one being handled."""
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        log.exception("it failed", attempt=1)
    log.error("another one", exc_info=ValueError("passed on"))
    handled, passed = _lines(capsys)
    assert (handled["level"], handled["exception_name"], handled["attempt"]) == ("ERROR", "ZeroDivisionError", 1)
    assert "Traceback" in handled["exception"]
    assert (passed["exception_name"], "passed on" in passed["exception"]) == ("ValueError", True)


@pytest.mark.parametrize("value", ["\ud800", "\x00", "ü", 'a "quote"', object(), {"a": {1, 2}}, {(1, 2): 3}, 1e400])
def test_a_line_is_written_whatever_is_in_it(log: Log, value: object, capsys: pytest.CaptureFixture[str]) -> None:
    """It is one line of ASCII: no text of a caller's breaks out of it, or keeps it from being written."""
    log.info("strange", value=value)
    text = capsys.readouterr().out
    assert text.isascii()
    assert text.count("\n") == 1
    assert json.loads(text)["message"] == "strange"


@pytest.mark.parametrize(("level", "message"), [("INFO", "sold"), ("WARNING", None)])
def test_a_line_s_metrics_are_written_at_every_level(
    level: str, message: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who wants fewer lines still wants the counts."""
    log = Log("tests", level=level)
    metrics = Metrics("Shop", service="tests", emit=log.emit)
    log.append_keys(trace_id='a "quote"', attempt=1, caller=None)
    log.info_with(f'"item":"i","Sold":2,{stamped(metrics.directive(("item",), {"Sold": "Count"}))}', "sold", to="me")
    (line,) = _lines(capsys)
    assert (line.get("message"), line["Sold"], line["item"]) == (message, 2, "i")
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert (directive["Namespace"], directive["Dimensions"]) == ("Shop", [["item", "service"]])


def test_metrics_are_written_when_they_are_flushed_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing collected, nothing written."""
    metrics = Metrics("Shop", service="tests", emit=Log("tests", level="INFO").emit)
    metrics.set_default_dimensions(worker="till")
    metrics.add_metric("Sold", MetricUnit.Count, 1)
    metrics.add_metric("Sold", MetricUnit.Count, 2)
    metrics.add_metric("Took", MetricUnit.Seconds, 0.5)
    metrics.flush_metrics()
    metrics.flush_metrics()
    (line,) = _lines(capsys)
    assert (line["Sold"], line["Took"], line["worker"], line["service"]) == ([1.0, 2.0], [0.5], "till", "tests")
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert directive["Metrics"] == [{"Name": "Sold", "Unit": "Count"}, {"Name": "Took", "Unit": "Seconds"}]
