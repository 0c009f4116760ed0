"""O7: logging, metrics and errors of the handler of a worker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from grantwire.errors import BadRequestError, RetryableError
from grantwire.observability import MetricUnit, metrics
from grantwire.wiring.workers.handler import WorkerHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire.workers.budget import Budget


class _Runtime(NamedTuple):
    run: Callable[[Budget], dict[str, Any]]


def _worker(work: Callable[[Budget], dict[str, Any]]) -> WorkerHandler:
    return WorkerHandler("tester", lambda _: _Runtime(work))


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_result_is_logged_and_returned(capsys: pytest.CaptureFixture[str]) -> None:
    """The log shows the result of each invocation."""
    assert _worker(lambda _: {"published": 3})({}, None) == {"published": 3}
    (line,) = _lines(capsys)
    assert (line["message"], line["worker"], line["result"]) == ("worker completed", "tester", {"published": 3})


def test_every_metric_document_has_the_worker_dimension(capsys: pytest.CaptureFixture[str]) -> None:
    """The collector flushes on its own at 100 values; that document has the dimension too."""

    def work(_budget: Budget) -> dict[str, Any]:
        for _ in range(150):
            metrics.add_metric("Tested", MetricUnit.Count, 1)
        return {}

    _worker(work)({}, None)
    documents = [line for line in _lines(capsys) if "_aws" in line]
    assert sum(sum(document["Tested"]) for document in documents) == 150
    for document in documents:
        assert sorted(document["_aws"]["CloudWatchMetrics"][0]["Dimensions"][0]) == ["service", "worker"]
        assert (document["service"], document["worker"]) == ("grantwire", "tester")


def test_failure_is_logged_and_raised_and_keeps_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    """The error metric of the function counts a raised error."""

    def work(_budget: Budget) -> dict[str, Any]:
        metrics.add_metric("Tested", MetricUnit.Count, 1)
        raise RetryableError("NATS is unreachable")

    with pytest.raises(RetryableError):
        _worker(work)({}, None)
    lines = _lines(capsys)
    assert "worker failed" in [line.get("message") for line in lines]
    assert [line["Tested"] for line in lines if "Tested" in line] == [[1.0]]


def test_invalid_event_error_names_the_field_and_format() -> None:
    """A manual invocation can have an invalid budget."""
    with pytest.raises(BadRequestError, match="budget must be a duration"):
        _worker(lambda _: {})({"budget": "soon"}, None)
