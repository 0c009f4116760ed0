from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.support import run

if TYPE_CHECKING:
    from collections.abc import Iterator

# A test must behave as on a machine that knows nothing of AWS, nor of another stack.
_OTHERS = ("AWS_", "DATABASE_", "IDEMPOTENCY_", "NATS_", "PLAINTEXT_", "POWERTOOLS_")
for name in [name for name in os.environ if name.startswith(_OTHERS)]:
    del os.environ[name]
os.environ["AWS_DEFAULT_REGION"] = "us-east-1"

# Seconds for a test that may have to build and deploy the stack first, or to pull images; others have pytest's default.
_DEPLOYED_TIMEOUT = 600


def pytest_configure() -> None:
    """Before any test, or pytest itself, makes a temporary file."""
    run.begin()


def pytest_unconfigure() -> None:
    """Also after an interrupt."""
    run.end()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test's folder is its suite, so that `-m "not e2e"` needs no marks in the files.

    In a run in several processes the deployed stack goes first, because it takes longest, and the tests of one
    PostgreSQL follow each other, so that each process starts each server once.
    """
    for item in items:
        suite = item.path.relative_to(Path(__file__).parent).parts[0]
        if suite in {"integration", "e2e", "containers"}:
            item.add_marker(suite)
        if suite in {"e2e", "containers"}:
            item.add_marker(pytest.mark.timeout(_DEPLOYED_TIMEOUT))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: ("e2e" not in item.keywords, _postgres(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What runs in one process: all tests of the deployed stack; of the others those of one file and one PostgreSQL."""
    from xdist.scheduler import (  # type: ignore[import-untyped]  # noqa: PLC0415 - only in a run in several processes
        LoadScopeScheduling,
    )

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "e2e" if file.startswith("tests/e2e/") else f"{file} {_postgres(nodeid)}"

    return Scheduling(config, log)


def _postgres(nodeid: str) -> str:
    """The PostgreSQL that a test runs on, if it is one that runs on each."""
    found = re.search(r"[\[-](pg\d+)[-\]]", nodeid)
    return found[1] if found else ""


class _CurrentStdout:
    """Standard output of the moment: pytest replaces it for each test, and a log's handler keeps the first it saw."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


@pytest.fixture(autouse=True)
def _lines_of_this_test() -> Iterator[None]:
    """A Lambda has one handler; tests have many in one process, and must not see each other's keys and dimensions."""
    from grantwire.observability import logger, metrics  # noqa: PLC0415 - after the environment is clean

    cast("logging.StreamHandler[Any]", logger.registered_handler).setStream(_CurrentStdout())
    yield
    logger.clear_state()
    metrics.clear_metrics()
    if logger.registered_handler in logging.root.handlers:  # the test was a Lambda function, whose process is its own
        logging.root.removeHandler(logger.registered_handler)
        logging.root.setLevel(logging.WARNING)
        logging.captureWarnings(capture=False)
