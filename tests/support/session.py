"""The session of pytest: environment, temporary files, suites, processes, and what a failed test left open."""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.support import run
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

# Settings of the developer's machine, for AWS or for a running stack, must not affect a test.
_FOREIGN_PREFIXES = ("AWS_", "DATABASE_", "IDEMPOTENCY_", "NATS_", "PLAINTEXT_", "POWERTOOLS_")
for name in [name for name in os.environ if name.startswith(_FOREIGN_PREFIXES)]:
    del os.environ[name]
os.environ["AWS_DEFAULT_REGION"] = "us-east-1"

# The fixtures that take their servers from the back end of the run.
BACKEND_FIXTURES = {"databases", "nats_url"}

# For tests that may first build and deploy the stack or pull images. Other tests have the default in pyproject.toml.
_DEPLOYED_TIMEOUT_SECONDS = 600


def pytest_configure() -> None:
    """Set the temporary directory before a test, or pytest itself, creates a temporary file."""
    run.begin()


def pytest_unconfigure() -> None:
    """Clean up, also after an interrupt."""
    run.end()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its suite, which is its folder, so that `-m "not e2e"` works without marks in the files.

    With another back end, select the integration tests that use its servers. The others test no server, or start their
    own: with TLS, with users, or to stop and kill it. `make test` runs them.

    With several processes, the tests of the deployed stack come first because they take longest. The tests of one
    PostgreSQL follow each other, so that each process starts each server once.
    """
    for item in items:
        suite = _find_suite(item)
        if suite in {"integration", "e2e", "deployments", "containers", "browser"}:
            item.add_marker(suite)
        if suite in {"e2e", "deployments", "containers", "browser", "localstack"}:
            item.add_marker(pytest.mark.timeout(_DEPLOYED_TIMEOUT_SECONDS))
    if os.environ.get("GRANTWIRE_TEST_BACKEND", "embedded") != "embedded":
        _deselect_tests_without_backend(config, items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: ("e2e" not in item.keywords, _postgres_version(item.nodeid)))


def _find_suite(item: pytest.Item) -> str:
    """Return the folder below `tests`, of the product or of a library in `layers`."""
    _, _, suite = item.path.relative_to(ROOT).as_posix().rpartition("tests/")
    return suite.partition("/")[0]


def _deselect_tests_without_backend(config: pytest.Config, items: list[pytest.Item]) -> None:
    others = [
        item
        for item in items
        if _find_suite(item) == "integration" and BACKEND_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    ]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in set(others)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep tests that share servers in one process.

    These are all tests of the deployed stack, and otherwise the tests of one file on one PostgreSQL.
    """
    from xdist.scheduler import (  # type: ignore[import-untyped]  # noqa: PLC0415 - only needed with several processes
        LoadScopeScheduling,
    )

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "e2e" if file.startswith("tests/e2e/") else f"{file} {_postgres_version(nodeid)}"

    return Scheduling(config, log)


def _postgres_version(nodeid: str) -> str:
    """Return the PostgreSQL in a test's parameters, such as "pg18", or "" if the test has no such parameter."""
    match = re.search(r"[\[-](pg\d+)[-\]]", nodeid)
    return match[1] if match else ""


_HAS_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the warnings of a failed test, such as for a connection that it did not close, instead of raising them.

    pytest restores its filters after the test.
    """
    report = yield
    if report.failed:
        item.stash[_HAS_FAILED] = True
        warnings.simplefilter("always")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Free what a failed test left open while its warnings are its own.

    Otherwise, the garbage collector frees it during a later test, where the warning is an error.
    """
    result = yield
    if item.stash.get(_HAS_FAILED, False):
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):  # set by pytest, for a debugger
            vars(sys).pop(name, None)
        gc.collect()
    return result


class _CurrentStdout:
    """The current `sys.stdout`: pytest replaces it for each test, but a log handler keeps the stream it was given."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


@pytest.fixture(autouse=True)
def _isolated_observability() -> Iterator[None]:
    """Reset the logger and metrics after each test, so that no test sees the keys and dimensions of another."""
    from grantwire.observability import logger, metrics  # noqa: PLC0415 - after the environment is clean

    cast("logging.StreamHandler[Any]", logger.registered_handler).setStream(_CurrentStdout())
    yield
    logger.clear_state()
    metrics.clear_metrics()
    if logger.registered_handler in logging.root.handlers:  # a function's handler also configured the root logger
        logging.root.removeHandler(logger.registered_handler)
        logging.root.setLevel(logging.WARNING)
        logging.captureWarnings(capture=False)
