"""What Powertools is configured to write, and the traps of its metrics that must stay shut."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from aws_lambda_powertools import Metrics

from grantwire.observability import MetricUnit, logger, metrics, trace_id_of
from infra.local.deployment.template import load_template
from tests.support.concurrency import at_once
from tests.support.paths import PYTHONPATH

if TYPE_CHECKING:
    from collections.abc import Callable

ON_LAMBDA = "import os; from grantwire.observability import *; configure(os.environ); "


def _parsed(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return _parsed(capsys.readouterr().out)


def _lines_of(program: str, **environ: str) -> list[dict[str, Any]]:
    """What a fresh interpreter writes to both outputs, each line parsed."""
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": PYTHONPATH, **environ},
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout
    return _parsed(answer.stdout)


def test_a_line_says_when_where_and_what(capsys: pytest.CaptureFixture[str]) -> None:
    """The time is RFC 3339 in UTC, which Lambda needs to filter by level."""
    logger.append_keys(trace_id="t")
    logger.warning("it rains", drops=3)
    (line,) = _lines(capsys)
    assert (line["level"], line["message"], line["service"]) == ("WARNING", "it rains", "grantwire")
    assert (line["drops"], line["trace_id"], line["name"]) == (3, "t", "grantwire")
    assert line["location"].startswith("test_a_line_says_when_where_and_what:")
    written_at = datetime.fromisoformat(line["timestamp"])
    assert (written_at.utcoffset(), "T" in line["timestamp"]) == (UTC.utcoffset(None), True)
    assert abs((datetime.now(UTC) - written_at).total_seconds()) < 60


def test_an_exception_is_named_and_traced(capsys: pytest.CaptureFixture[str]) -> None:
    """With its cause, as Python shows it; one that is handed over is not the one being handled."""
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logger.exception("it failed", attempt=1)
    logger.error("another one", exc_info=ValueError("passed on"))
    handled, passed = _lines(capsys)
    assert (handled["level"], handled["exception_name"], handled["attempt"]) == ("ERROR", "ZeroDivisionError", 1)
    assert "Traceback" in handled["exception"]
    assert (passed["exception_name"], "passed on" in passed["exception"]) == ("ValueError", True)


@pytest.mark.parametrize("value", ["\ud800", "\x00", "ü", 'a "quote"', object(), {"a": {1, 2}}, {(1, 2): 3}, 1e400])
def test_a_line_is_written_whatever_is_in_it(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    """It is one line of ASCII: no text of a caller's breaks out of it, or keeps it from being written."""
    logger.info("strange", value=value)
    text = capsys.readouterr().out
    assert text.isascii()
    assert text.count("\n") == 1
    assert json.loads(text)["message"] == "strange"


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("DEBUG", ["debug", "info", "warning", "error"]),
        ("", ["info", "warning", "error"]),
        ("INFO", ["info", "warning", "error"]),
        ("WARN", ["warning", "error"]),
        ("ERROR", ["error"]),
        ("CRITICAL", []),
    ],
)
@pytest.mark.parametrize("lambda_level", ["DEBUG", "INFO"])
def test_the_level_is_that_of_powertools(level: str, written: list[str], lambda_level: str) -> None:
    """POWERTOOLS_LOG_LEVEL decides, also below and above the level at which Lambda itself drops lines."""
    program = ON_LAMBDA + "[getattr(log, name)(name) for name in ('debug', 'info', 'warning', 'error')]"
    environ = {"POWERTOOLS_LOG_LEVEL": level, "AWS_LAMBDA_LOG_LEVEL": lambda_level, "PYTHONWARNINGS": "ignore"}
    assert [line["message"] for line in _lines_of(program, **environ)] == written


def test_a_level_is_obeyed_outside_lambda_too() -> None:
    """An operator's program configures nothing."""
    program = "from grantwire.observability import logger; logger.info('no'); logger.error('yes')"
    assert [line["message"] for line in _lines_of(program, POWERTOOLS_LOG_LEVEL="ERROR")] == ["yes"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("POWERTOOLS_LOG_LEVEL", "nonsense"),
        ("POWERTOOLS_LOG_LEVEL", "info"),
        ("POWERTOOLS_LOGGER_SAMPLE_RATE", "often"),
        ("POWERTOOLS_METRICS_DISABLED", "perhaps"),
        ("POWERTOOLS_DEV", "perhaps"),
    ],
)
def test_a_variable_that_cannot_be_read_stops_the_init_phase(variable: str, value: str) -> None:
    """As every other bad setting does, and not in the middle of a request; importing does not read it."""
    program = (
        "import os; from grantwire.errors import ConfigError; from grantwire.observability import *\n"
        "try: configure(os.environ)\n"
        "except ConfigError as error: print('{\"problem\": \"%s\"}' % str(error).replace('\"', ''))"
    )
    (line,) = _lines_of(program, **{variable: value})
    assert value in line["problem"].lower()
    assert "POWERTOOLS" in line["problem"].upper()


@pytest.mark.parametrize(
    ("environ", "service", "namespace"),
    [
        ({}, "grantwire", "Grantwire"),
        ({"POWERTOOLS_SERVICE_NAME": "shop", "POWERTOOLS_METRICS_NAMESPACE": "Shop"}, "shop", "Shop"),
    ],
)
def test_service_and_namespace_are_those_of_powertools(environ: dict[str, str], service: str, namespace: str) -> None:
    """One name in lines and metrics."""
    program = ON_LAMBDA + "logger.info('hello'); metrics.add_metric('Sold', 'Count', 1); metrics.flush_metrics()"
    line, document = _lines_of(program, **environ)
    assert (line["service"], document["service"]) == (service, service)
    (directive,) = document["_aws"]["CloudWatchMetrics"]
    assert (directive["Namespace"], directive["Dimensions"]) == (namespace, [["service"]])


def test_sampled_invocations_write_their_debug_lines() -> None:
    """POWERTOOLS_LOGGER_SAMPLE_RATE: each invocation is decided by itself, and goes back to its level."""
    program = ON_LAMBDA + (
        "import random\n"
        "for chance in (0.2, 0.9, 0.1):\n"
        "    random.random = lambda: chance\n"
        "    begin_invocation(chance=chance); logger.debug('details')"
    )
    lines = _lines_of(program, POWERTOOLS_LOGGER_SAMPLE_RATE="0.5", AWS_LAMBDA_LOG_LEVEL="DEBUG")
    assert [line["chance"] for line in lines] == [0.2, 0.1]
    assert lines[0]["sampling_rate"] == "0.5"
    assert _lines_of(program) == []


LIBRARIES = ["nats.aio.client", "psycopg", "botocore.endpoint", "grantwire_idempotency.execution", "asyncio", "urllib3"]


@pytest.mark.parametrize("level", ["DEBUG", "INFO", "ERROR"])
def test_lines_of_libraries_are_written_like_ours(level: str) -> None:
    """Once each, as JSON with their level and name, although Lambda's own handler was there first."""
    program = (
        "import logging, sys; logging.getLogger().addHandler(logging.StreamHandler(sys.stdout)); "
        "logging.getLogger().setLevel('DEBUG'); "
        + ON_LAMBDA
        + "begin_invocation(trace_id='t'); logger.error('ours')\n"
        + f"for name in {LIBRARIES}:\n"
        + "    for level in ('debug', 'info', 'error'): getattr(logging.getLogger(name), level)('%s happened', level)"
    )
    lines = _lines_of(program, POWERTOOLS_LOG_LEVEL=level)
    assert {(line["service"], line["trace_id"]) for line in lines} == {("grantwire", "t")}
    assert [line["message"] for line in lines if line["name"] == "grantwire"] == ["ours"]
    shown = {"DEBUG": ["info", "error"], "INFO": ["info", "error"], "ERROR": ["error"]}[level]
    for name in LIBRARIES:
        # Our own library follows the level; the others' DEBUG lines may contain secrets.
        expected = ["debug", *shown] if level == "DEBUG" and name.startswith("grantwire") else shown
        found = [(line["level"], line["message"]) for line in lines if line["name"] == name]
        assert found == [(text.upper(), f"{text} happened") for text in expected]


def test_a_warning_of_python_is_a_line_too() -> None:
    """Powertools and others warn; that must not be a line that is not JSON."""
    (line,) = _lines_of(ON_LAMBDA + "import warnings; warnings.warn('mind the gap')")
    assert (line["level"], line["name"]) == ("WARNING", "py.warnings")
    assert "mind the gap" in line["message"]


TRIPWIRE = """
import os, pkgutil, sys
from importlib import import_module

class Tripwire(dict):
    def check(self):
        frame = sys._getframe(2)
        while frame is not None:
            name = frame.f_globals["__name__"]
            # Another's module that is being imported, or the switches of protobuf that generated code asks for.
            if name.startswith("importlib") or name.endswith("_pb2"):
                return
            if name.startswith(("grantwire", "functions")):
                sys.exit(f"{name}:{frame.f_lineno} reads the environment")
            frame = frame.f_back
    def get(self, *names): self.check(); return super().get(*names)
    def __getitem__(self, name): self.check(); return super().__getitem__(name)
    def __contains__(self, name):
        if name != "AWS_LAMBDA_FUNCTION_NAME": self.check()  # whether there is an init phase
        return super().__contains__(name)

os.environ = Tripwire(os.environ)
import grantwire, functions
names = [m.name for m in pkgutil.walk_packages(grantwire.__path__, "grantwire.")]
names += [f"functions.{name}.handler" for name in sorted(os.listdir(list(functions.__path__)[0]))]
for name in names:
    if "__" not in name: import_module(name)
assert len(names) > 100
"""


def test_no_module_reads_the_environment_when_it_is_imported() -> None:
    """Neither itself nor by creating something of Powertools' that does; handlers only ask whether this is Lambda."""
    assert _lines_of(TRIPWIRE) == []


def test_metrics_are_written_when_they_are_flushed_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing collected: nothing written and, with warnings as errors here, no warning."""
    metrics.add_dimension("worker", "till")
    metrics.add_metric("Sold", MetricUnit.Count, 1)
    metrics.add_metric("Sold", MetricUnit.Count, 2)
    metrics.add_metric("Took", MetricUnit.Seconds, 0.5)
    metrics.flush_metrics()
    metrics.flush_metrics()
    (line,) = _lines(capsys)
    assert (line["Sold"], line["Took"], line["worker"], line["service"]) == ([1.0, 2.0], [0.5], "till", "grantwire")
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert directive["Metrics"] == [{"Name": "Sold", "Unit": "Count"}, {"Name": "Took", "Unit": "Seconds"}]


def _next_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """One more line, without what makes it one."""
    with metrics.line():
        metrics.add_metric("Next", MetricUnit.Count, 1)
    (line,) = _lines(capsys)
    del line["_aws"]
    return line


ALONE = {"service": "grantwire", "Next": [1.0]}


def test_a_line_leaves_nothing_to_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither dimensions nor metadata, also if it had no metric and so was never written."""
    with metrics.line():
        metrics.add_dimension("outcome", "OK")
        metrics.add_metadata("caller", "shop")
    assert capsys.readouterr().out == ""
    assert _next_line(capsys) == ALONE


def _fail_inside() -> None:
    with metrics.line():
        metrics.add_dimension("outcome", "OK")
        metrics.add_metadata("caller", 1 / 0)


def _fail_to_encode() -> None:
    with metrics.line():
        metrics.add_dimension("outcome", "OK")
        metrics.add_metadata("caller", object())
        metrics.add_metric("Sold", MetricUnit.Count, 1)


@pytest.mark.parametrize(("fail", "error"), [(_fail_inside, ZeroDivisionError), (_fail_to_encode, TypeError)])
def test_a_line_that_fails_leaves_nothing_either(
    fail: Callable[[], None], error: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it fails while it is put together or when it is written."""
    with pytest.raises(error):
        fail()
    assert capsys.readouterr().out == ""
    assert _next_line(capsys) == ALONE


@pytest.mark.parametrize("variable", ["POWERTOOLS_METRICS_DISABLED", "POWERTOOLS_DEV"])
def test_lines_that_are_switched_off_do_not_pile_up(
    variable: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Powertools would keep what it does not write, and write it at the hundredth value after all."""
    monkeypatch.setenv(variable, "true")
    for _ in range(150):
        with metrics.line():
            metrics.add_metadata("caller", "shop")
            metrics.add_metric("Sold", MetricUnit.Count, 1)
    assert capsys.readouterr().out == ""
    monkeypatch.delenv(variable)
    assert _next_line(capsys) == ALONE


def test_other_collectors_of_powertools_are_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    """All instances of its `Metrics` share their state: a dimension or value of another must not get into our lines."""
    other = Metrics(namespace="Shop", service="shop")
    other.set_default_dimensions(till="3")
    other.add_metric("Sold", MetricUnit.Count, 1)
    other.add_metadata("caller", "shop")
    try:
        assert _next_line(capsys) == ALONE
        assert (list(other.metric_set), other.metadata_set) == (["Sold"], {"caller": "shop"})
    finally:
        other.clear_default_dimensions()
        other.clear_metrics()


class _SlowOutput:
    """Lets other threads go first after each write, as a write to Lambda's output does."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, text: str) -> None:
        """Keep it."""
        self.written.append(text)
        time.sleep(0.0001)

    def flush(self) -> None:
        """Nothing waits."""


def test_lines_of_threads_stay_whole_and_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Powertools prints a document in two writes, and its collector empties itself; nothing mixes or gets lost."""
    output = _SlowOutput()
    monkeypatch.setattr(sys, "stdout", output)
    metrics.add_dimension("worker", "till")

    def work(number: int) -> None:
        for _ in range(250):
            if number % 2:
                metrics.add_metric("Sold", MetricUnit.Count, 1)
            else:
                logger.info("sold")

    at_once(4, work)
    metrics.flush_metrics()
    lines = _parsed("".join(output.written))
    documents = [line for line in lines if "_aws" in line]
    assert len(lines) - len(documents) == 500
    assert [(line["worker"], line["service"]) for line in documents] == [("till", "grantwire")] * 5
    assert sum(sum(line["Sold"]) for line in documents) == 500


def test_requests_in_threads_keep_their_lines_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line has the dimensions and values that were added inside, and no other line is written in its middle."""
    output = _SlowOutput()
    monkeypatch.setattr(sys, "stdout", output)

    def request(number: int) -> None:
        for _ in range(50):
            logger.info("sold")
            with metrics.line():
                metrics.add_dimension("till", str(number))
                metrics.add_metric("Sold", MetricUnit.Count, number)

    at_once(3, request)
    lines = _parsed("".join(output.written))
    sold = [(line["till"], line["Sold"]) for line in lines if "_aws" in line]
    assert sorted(sold) == sorted((str(number), [float(number)]) for number in range(3) for _ in range(50))
    assert len(lines) == 300


def test_a_flush_keeps_the_lines_of_threads_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker flushes while the threads that it started may still log."""
    output = _SlowOutput()
    monkeypatch.setattr(sys, "stdout", output)

    def work(number: int) -> None:
        for _ in range(50):
            if number:
                logger.info("sold")
            else:
                metrics.add_metric("Sold", MetricUnit.Count, 1)
                metrics.flush_metrics()

    at_once(2, work)
    assert sorted("Sold" in line for line in _parsed("".join(output.written))) == [False] * 50 + [True] * 50


@pytest.mark.parametrize(
    ("headers", "trace"),
    [
        (("Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1",), "1-5759e988-bd862e3fe1be46a994272793"),
        ((None, "Self=1;Root=1-5759e988-bd862e3fe1be46a994272793"), "1-5759e988-bd862e3fe1be46a994272793"),
    ],
)
def test_the_first_header_that_names_a_trace_decides(headers: tuple[str | None, ...], trace: str) -> None:
    """What the Lambda runtime says, then what the caller sent."""
    assert trace_id_of(*headers) == trace


def test_lambda_drops_no_line_of_metrics() -> None:
    """It takes a line without a level for INFO: the functions leave lines out, and Lambda none above DEBUG."""
    template = load_template()
    shared = template["Globals"]["Function"]
    functions = [r["Properties"] for r in template["Resources"].values() if r["Type"] == "AWS::Serverless::Function"]
    assert functions
    for function in functions:
        logging_config = {**shared.get("LoggingConfig", {}), **function.get("LoggingConfig", {})}
        assert (logging_config["LogFormat"], logging_config["ApplicationLogLevel"]) == ("JSON", "DEBUG")
        variables = {**shared["Environment"]["Variables"], **function.get("Environment", {}).get("Variables", {})}
        assert variables["POWERTOOLS_LOG_LEVEL"] == {"Ref": "LogLevel"}
    for level in template["Parameters"]["LogLevel"]["AllowedValues"]:
        assert level in logging.getLevelNamesMapping()
