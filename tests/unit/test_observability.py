"""The output of the logger and the metrics collector, and protection against known problems of Powertools."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from aws_lambda_powertools import Metrics

from grantwire.observability import MetricUnit, logger, metrics, trace_id_from_headers
from infra.local.deployment.template import load_template
from tests.support.concurrency import run_concurrently
from tests.support.paths import PYTHONPATH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONFIGURE = "import os; from grantwire.observability import *; configure(os.environ); "


def _parse(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return _parse(capsys.readouterr().out)


def _run_and_parse(program: str, **environ: str) -> list[dict[str, Any]]:
    """Run `program` in a new interpreter and return the parsed lines of standard output and standard error."""
    process = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": PYTHONPATH, **environ},
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout
    return _parse(process.stdout)


def test_log_line_has_time_location_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """The time is RFC 3339 in UTC; Lambda needs it to filter lines by level."""
    logger.append_keys(trace_id="t")
    logger.warning("queue is long", depth=3)
    (line,) = _lines(capsys)
    assert (line["level"], line["message"], line["service"]) == ("WARNING", "queue is long", "grantwire")
    assert (line["depth"], line["trace_id"], line["name"]) == (3, "t", "grantwire")
    assert line["location"].startswith("test_log_line_has_time_location_and_fields:")
    written_at = datetime.fromisoformat(line["timestamp"])
    assert (written_at.utcoffset(), "T" in line["timestamp"]) == (UTC.utcoffset(None), True)
    assert abs((datetime.now(UTC) - written_at).total_seconds()) < 60


def test_exception_is_logged_with_name_and_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """This holds for the exception being handled, and for one that is passed as `exc_info`."""
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
def test_any_value_is_logged_as_one_ascii_line(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    """No value can add a second line or prevent the line from being written."""
    logger.info("strange", value=value)
    text = capsys.readouterr().out
    assert text.isascii()
    assert text.count("\n") == 1
    assert json.loads(text)["message"] == "strange"


@pytest.mark.parametrize(
    ("level", "expected"),
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
def test_log_level_is_set_by_powertools_log_level(level: str, expected: list[str], lambda_level: str) -> None:
    """The variable has priority over the log level of Lambda, whether that is lower or higher."""
    program = CONFIGURE + "[getattr(logger, name)(name) for name in ('debug', 'info', 'warning', 'error')]"
    environ = {"POWERTOOLS_LOG_LEVEL": level, "AWS_LAMBDA_LOG_LEVEL": lambda_level, "PYTHONWARNINGS": "ignore"}
    assert [line["message"] for line in _run_and_parse(program, **environ)] == expected


def test_log_level_applies_without_configure() -> None:
    """Command line tools do not call `configure`."""
    program = "from grantwire.observability import logger; logger.info('no'); logger.error('yes')"
    assert [line["message"] for line in _run_and_parse(program, POWERTOOLS_LOG_LEVEL="ERROR")] == ["yes"]


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
def test_invalid_powertools_variable_is_a_config_error(variable: str, value: str) -> None:
    """`configure` raises it in the init phase, not a request; importing does not read the variable."""
    program = (
        "import os; from grantwire.errors import ConfigError; from grantwire.observability import *\n"
        "try: configure(os.environ)\n"
        "except ConfigError as error: print('{\"problem\": \"%s\"}' % str(error).replace('\"', ''))"
    )
    (line,) = _run_and_parse(program, **{variable: value})
    assert value in line["problem"].lower()
    assert "POWERTOOLS" in line["problem"].upper()


@pytest.mark.parametrize(
    ("environ", "service", "namespace"),
    [
        ({}, "grantwire", "Grantwire"),
        ({"POWERTOOLS_SERVICE_NAME": "shop", "POWERTOOLS_METRICS_NAMESPACE": "Shop"}, "shop", "Shop"),
    ],
)
def test_service_and_namespace_are_set_by_powertools_variables(
    environ: dict[str, str], service: str, namespace: str
) -> None:
    """Log lines and metrics have the same service."""
    program = CONFIGURE + "logger.info('hello'); metrics.add_metric('Published', 'Count', 1); metrics.flush_metrics()"
    line, document = _run_and_parse(program, **environ)
    assert (line["service"], document["service"]) == (service, service)
    (directive,) = document["_aws"]["CloudWatchMetrics"]
    assert (directive["Namespace"], directive["Dimensions"]) == (namespace, [["service"]])


def test_sampled_invocations_write_debug_lines() -> None:
    """POWERTOOLS_LOGGER_SAMPLE_RATE: each invocation is sampled independently; the others keep the log level."""
    program = CONFIGURE + (
        "import random\n"
        "for chance in (0.2, 0.9, 0.1):\n"
        "    random.random = lambda: chance\n"
        "    begin_invocation(chance=chance); logger.debug('details')"
    )
    lines = _run_and_parse(program, POWERTOOLS_LOGGER_SAMPLE_RATE="0.5", AWS_LAMBDA_LOG_LEVEL="DEBUG")
    assert [line["chance"] for line in lines] == [0.2, 0.1]
    assert lines[0]["sampling_rate"] == "0.5"
    assert _run_and_parse(program) == []


LIBRARIES = ["nats.aio.client", "psycopg", "botocore.endpoint", "grantwire_idempotency", "asyncio", "urllib3"]


@pytest.mark.parametrize("level", ["DEBUG", "INFO", "ERROR"])
def test_lines_of_libraries_have_the_same_format(level: str) -> None:
    """Each is written once, as JSON with level and logger name, although Lambda adds its own handler first."""
    program = (
        "import logging, sys; logging.getLogger().addHandler(logging.StreamHandler(sys.stdout)); "
        "logging.getLogger().setLevel('DEBUG'); "
        + CONFIGURE
        + "begin_invocation(trace_id='t'); logger.error('own line')\n"
        + f"for name in {LIBRARIES}:\n"
        + "    for level in ('debug', 'info', 'error'): getattr(logging.getLogger(name), level)('%s happened', level)"
    )
    lines = _run_and_parse(program, POWERTOOLS_LOG_LEVEL=level)
    assert {(line["service"], line["trace_id"]) for line in lines} == {("grantwire", "t")}
    assert [line["message"] for line in lines if line["name"] == "grantwire"] == ["own line"]
    levels = {"DEBUG": ["info", "error"], "INFO": ["info", "error"], "ERROR": ["error"]}[level]
    for name in LIBRARIES:
        # Only the idempotency library may log at DEBUG; DEBUG lines of the others may contain secrets.
        expected = ["debug", *levels] if level == "DEBUG" and name.startswith("grantwire") else levels
        logged = [(line["level"], line["message"]) for line in lines if line["name"] == name]
        assert logged == [(text.upper(), f"{text} happened") for text in expected]


def test_python_warning_is_a_json_line() -> None:
    """Warnings of Powertools and other libraries must not produce lines that are not JSON."""
    (line,) = _run_and_parse(CONFIGURE + "import warnings; warnings.warn('deprecated option')")
    assert (line["level"], line["name"]) == ("WARNING", "py.warnings")
    assert "deprecated option" in line["message"]


TRIPWIRE = """
import os, pkgutil, sys
from importlib import import_module

class Tripwire(dict):
    def check(self):
        frame = sys._getframe(2)
        while frame is not None:
            name = frame.f_globals["__name__"]
            # Modules of other packages while they are imported, and variables that generated protobuf code reads.
            if name.startswith("importlib") or name.endswith("_pb2"):
                return
            if name.startswith(("grantwire", "functions")):
                sys.exit(f"{name}:{frame.f_lineno} reads the environment")
            frame = frame.f_back
    def get(self, *names): self.check(); return super().get(*names)
    def __getitem__(self, name): self.check(); return super().__getitem__(name)
    def __contains__(self, name):
        if name != "AWS_LAMBDA_FUNCTION_NAME": self.check()  # LazyRuntime checks this one
        return super().__contains__(name)

os.environ = Tripwire(os.environ)
import grantwire, functions
names = [m.name for m in pkgutil.walk_packages(grantwire.__path__, "grantwire.")]
names += [f"functions.{name}.handler" for name in sorted(os.listdir(list(functions.__path__)[0]))]
for name in names:
    if "__" not in name: import_module(name)
assert len(names) > 100
"""


def test_importing_a_module_does_not_read_the_environment() -> None:
    """Neither directly nor through Powertools. Handlers only check whether AWS_LAMBDA_FUNCTION_NAME is set."""
    assert _run_and_parse(TRIPWIRE) == []


def test_metrics_are_written_once_when_flushed(capsys: pytest.CaptureFixture[str]) -> None:
    """A flush without values writes nothing and does not warn (pytest turns warnings into errors)."""
    metrics.add_dimension("worker", "relay")
    metrics.add_metric("Published", MetricUnit.Count, 1)
    metrics.add_metric("Published", MetricUnit.Count, 2)
    metrics.add_metric("Took", MetricUnit.Seconds, 0.5)
    metrics.flush_metrics()
    metrics.flush_metrics()
    (line,) = _lines(capsys)
    assert (line["Published"], line["Took"], line["worker"], line["service"]) == (
        [1.0, 2.0],
        [0.5],
        "relay",
        "grantwire",
    )
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert directive["Metrics"] == [{"Name": "Published", "Unit": "Count"}, {"Name": "Took", "Unit": "Seconds"}]


@contextmanager
def _flushing() -> Iterator[None]:
    """Flush the collector at the end, also after an exception, as the entry points do."""
    try:
        yield
    finally:
        metrics.flush_metrics()


def _write_next_document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Write one more document and return it without its `_aws` part."""
    with _flushing():
        metrics.add_metric("Next", MetricUnit.Count, 1)
    (line,) = _lines(capsys)
    del line["_aws"]
    return line


NEXT_DOCUMENT = {"service": "grantwire", "Next": [1.0]}


def test_document_contains_nothing_of_the_previous_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Dimensions and metadata are cleared even if the previous document had no metric and was not written."""
    with _flushing():
        metrics.add_dimension("outcome", "OK")
        metrics.add_metadata("caller", "shop")
    assert capsys.readouterr().out == ""
    assert _write_next_document(capsys) == NEXT_DOCUMENT


def _fail_inside() -> None:
    with _flushing():
        metrics.add_dimension("outcome", "OK")
        metrics.add_metadata("caller", 1 / 0)


def _fail_to_encode() -> None:
    with _flushing():
        metrics.add_dimension("outcome", "OK")
        metrics.add_metadata("caller", object())
        metrics.add_metric("Published", MetricUnit.Count, 1)


@pytest.mark.parametrize(("fail", "error"), [(_fail_inside, ZeroDivisionError), (_fail_to_encode, TypeError)])
def test_document_contains_nothing_of_a_failed_one(
    fail: Callable[[], None], error: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first fails while values are added, the second when it is written."""
    with pytest.raises(error):
        fail()
    assert capsys.readouterr().out == ""
    assert _write_next_document(capsys) == NEXT_DOCUMENT


@pytest.mark.parametrize("variable", ["POWERTOOLS_METRICS_DISABLED", "POWERTOOLS_DEV"])
def test_disabled_metrics_do_not_accumulate(
    variable: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Powertools would keep the values and write them at the hundredth value."""
    monkeypatch.setenv(variable, "true")
    for _ in range(150):
        with _flushing():
            metrics.add_metadata("caller", "shop")
            metrics.add_metric("Published", MetricUnit.Count, 1)
    assert capsys.readouterr().out == ""
    monkeypatch.delenv(variable)
    assert _write_next_document(capsys) == NEXT_DOCUMENT


def test_collector_is_independent_of_other_powertools_collectors(capsys: pytest.CaptureFixture[str]) -> None:
    """All instances of Powertools' `Metrics` share state; their dimensions and values must not get into ours."""
    other = Metrics(namespace="Shop", service="shop")
    other.set_default_dimensions(shop="3")
    other.add_metric("Published", MetricUnit.Count, 1)
    other.add_metadata("caller", "shop")
    try:
        assert _write_next_document(capsys) == NEXT_DOCUMENT
        assert (list(other.metric_set), other.metadata_set) == (["Published"], {"caller": "shop"})
    finally:
        other.clear_default_dimensions()
        other.clear_metrics()


class _SlowOutput:
    """An output that switches threads after each write, as a slow write to standard output does."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, text: str) -> None:
        """Record the text."""
        self.written.append(text)
        time.sleep(0.0001)

    def flush(self) -> None:
        """Do nothing."""


def test_lines_of_concurrent_threads_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Powertools prints a document in two writes and flushes on its own; no line mixes and no value is lost."""
    output = _SlowOutput()
    monkeypatch.setattr(sys, "stdout", output)
    metrics.add_dimension("worker", "relay")

    def work(number: int) -> None:
        for _ in range(250):
            if number % 2:
                metrics.add_metric("Published", MetricUnit.Count, 1)
            else:
                logger.info("published")

    run_concurrently(4, work)
    metrics.flush_metrics()
    lines = _parse("".join(output.written))
    documents = [line for line in lines if "_aws" in line]
    assert len(lines) - len(documents) == 500
    assert [(line["worker"], line["service"]) for line in documents] == [("relay", "grantwire")] * 5
    assert sum(sum(line["Published"]) for line in documents) == 500


def test_documents_of_concurrent_threads_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document has only its own dimensions and values, and no other line interrupts it."""
    output = _SlowOutput()
    monkeypatch.setattr(sys, "stdout", output)

    def request(number: int) -> None:
        for _ in range(50):
            logger.info("published")
            metrics.write_document(
                {"Published": {"Unit": "Count", "Value": [float(number)]}},
                dimensions={"relay": str(number), "service": "grantwire"},
                metadata={},
            )

    run_concurrently(3, request)
    lines = _parse("".join(output.written))
    published = [(line["relay"], line["Published"]) for line in lines if "_aws" in line]
    assert sorted(published) == sorted((str(number), [float(number)]) for number in range(3) for _ in range(50))
    assert len(lines) == 300


def test_flush_is_not_interrupted_by_lines_of_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker flushes while its threads may still log."""
    output = _SlowOutput()
    monkeypatch.setattr(sys, "stdout", output)

    def work(number: int) -> None:
        for _ in range(50):
            if number:
                logger.info("published")
            else:
                metrics.add_metric("Published", MetricUnit.Count, 1)
                metrics.flush_metrics()

    run_concurrently(2, work)
    assert sorted("Published" in line for line in _parse("".join(output.written))) == [False] * 50 + [True] * 50


@pytest.mark.parametrize(
    ("headers", "trace"),
    [
        (("Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1",), "1-5759e988-bd862e3fe1be46a994272793"),
        ((None, "Self=1;Root=1-5759e988-bd862e3fe1be46a994272793"), "1-5759e988-bd862e3fe1be46a994272793"),
    ],
)
def test_trace_id_is_taken_from_the_first_header_that_has_one(headers: tuple[str | None, ...], trace: str) -> None:
    """The header of the Lambda runtime comes first, then the header of the request."""
    assert trace_id_from_headers(*headers) == trace


def test_lambda_log_level_drops_no_metrics() -> None:
    """Lambda treats a metrics document as INFO, so its log level is DEBUG and the functions filter lines themselves."""
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
