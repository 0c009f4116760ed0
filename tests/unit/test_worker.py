"""O7: what a scheduled worker's handler does around the work."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.errors import BadRequestError, RetryableError
from grantwire.observability import MetricUnit, metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire.workers.budget import Budget


class _Runtime(NamedTuple):
    run: Callable[[Budget], dict[str, Any]]


def _worker(work: Callable[[Budget], dict[str, Any]]) -> WorkerHandler:
    return WorkerHandler("tester", lambda _: _Runtime(work))


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_result_is_logged_and_returned(capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody on call sees what each minute did."""
    assert _worker(lambda _: {"published": 3})({}, None) == {"published": 3}
    (line,) = _lines(capsys)
    assert (line["message"], line["worker"], line["result"]) == ("worker completed", "tester", {"published": 3})


def test_every_value_of_a_metric_carries_its_worker(capsys: pytest.CaptureFixture[str]) -> None:
    """The collector empties itself at 100 values; an alarm must see the first hundred too."""

    def work(_budget: Budget) -> dict[str, Any]:
        for _ in range(150):
            metrics.add_metric("Tested", MetricUnit.Count, 1)
        return {}

    _worker(work)({}, None)
    blobs = [line for line in _lines(capsys) if "_aws" in line]
    assert sum(sum(blob["Tested"]) for blob in blobs) == 150
    for blob in blobs:
        assert sorted(blob["_aws"]["CloudWatchMetrics"][0]["Dimensions"][0]) == ["service", "worker"]
        assert (blob["service"], blob["worker"]) == ("grantwire", "tester")


def test_a_failure_is_logged_raised_and_does_not_lose_its_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    """The function's error metric must count it."""

    def work(_budget: Budget) -> dict[str, Any]:
        metrics.add_metric("Tested", MetricUnit.Count, 1)
        raise RetryableError("NATS is unreachable")

    with pytest.raises(RetryableError):
        _worker(work)({}, None)
    lines = _lines(capsys)
    assert "worker failed" in [line.get("message") for line in lines]
    assert [line["Tested"] for line in lines if "Tested" in line] == [[1.0]]


def test_a_bad_event_says_what_it_should_have_been() -> None:
    """Whoever invoked it by hand made a mistake."""
    with pytest.raises(BadRequestError, match="budget must be a duration"):
        _worker(lambda _: {})({"budget": "soon"}, None)
