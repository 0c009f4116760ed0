from __future__ import annotations

import contextlib
import gc
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row

from infra.local.containers import engine as engines
from infra.local.containers.sam_local import SamLocal, available_target, build_functions
from infra.local.errors import CommandError
from infra.local.progress import Progress
from infra.local.servers.postgres import UNSAFE, PostgresServer
from tests.containers.sandbox import Sandbox
from tests.support.nats_users import NatsWithUsers, configured
from tests.support.servers import STATE, Databases
from tests.support.workers.relay_support import worker_environ

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.containers.engine import Engine

Rows = psycopg.Connection[dict[str, Any]]

FOLDER = STATE / "containers"
_engine_errors: list[str] = []


def pytest_unconfigure(config: pytest.Config) -> None:
    """Print at the end why nothing was tested: a run without an engine proves nothing."""
    terminal = config.pluginmanager.getplugin("terminalreporter")
    for error in _engine_errors:
        terminal.write_line(f"\nNo test was run: all of them need a container engine. {error}", red=True)


@pytest.fixture(scope="session", autouse=True)
def engine() -> Iterator[Engine]:
    """The container engine; without one, every test here is skipped."""
    with contextlib.ExitStack() as stack:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # Docker's client leaves a failed socket open
            engine = _connect(stack)
            gc.collect()
        if isinstance(engine, str):
            _engine_errors.append(engine)
            pytest.skip("no container engine responds")
        yield engine


def _connect(stack: contextlib.ExitStack) -> Engine | str:
    """Return the engine, or the error as text."""
    try:
        return stack.enter_context(engines.connect_engine())
    except CommandError as error:
        return f"{error} {error.hint}"


@pytest.fixture(scope="session")
def sandbox(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """The functions, built once for Lambda."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled(), Progress().step("Building the functions"):
        target = available_target(engine)
        built = build_functions(FOLDER, target)
    yield Sandbox(SamLocal(FOLDER, built, target), engine, FOLDER / "start-api.log")
    shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """Databases of an embedded server, which listens on 127.0.0.1 only."""
    server = PostgresServer(FOLDER / "postgres", settings=UNSAFE)
    try:
        server.start()
        with contextlib.closing(Databases(server)) as databases:
            yield databases
    finally:
        server.destroy()


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """The address of an embedded NATS, which also listens on 127.0.0.1 only."""
    server = NatsWithUsers(FOLDER / "nats")
    try:
        server.start()
        yield server.url
    finally:
        server.destroy()


@pytest.fixture
def environ(databases: Databases, nats_url: str) -> Iterator[dict[str, str]]:
    """The environment of a worker on this machine, with its own database and streams."""
    url = databases.migrated()
    try:
        yield environment(url, nats_url) | {"CLIENTS_DATABASE_URL": databases.url_for_clients(url)}
    finally:
        databases.drop(url)


@pytest.fixture
def rows(databases: Databases, environ: dict[str, str]) -> Iterator[Rows]:
    """A connection as the owner, to check what was written."""
    url = databases.url_for_owner(environ["DATABASE_URL"])
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


def environment(database_url: str, nats_url: str) -> dict[str, str]:
    """Return the variables of every worker, with its own, configured streams."""
    return configured(worker_environ(database_url, nats_url)) | {"TOKEN_ENVIRONMENT": "dev"}
