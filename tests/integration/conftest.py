from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from grantwire.observability import logger
from infra.local.system.memory import in_memory
from tests.support.client import Client
from tests.support.fixtures import Rows
from tests.support.nats_users import NatsWithUsers, configured
from tests.support.servers import STATE
from tests.support.workers.bridge_stream import Stream
from tests.support.workers.relay_support import worker_environ

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Databases

__all__ = ["Rows"]


@pytest.fixture
def clients_url(databases: Databases, database_url: str) -> str:
    """Address of the same database for the role of manage_clients."""
    return databases.url_for_clients(database_url)


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    """Caller of the functions in this process, with one connection as in one execution environment."""
    with Client(database_url) as client:
        yield client


@pytest.fixture
def nats_server() -> Iterator[NatsWithUsers]:
    """NATS that only this test uses, to stop, kill or restart it."""
    server = NatsWithUsers(in_memory(STATE) / "private-nats")
    server.start()
    yield server
    server.destroy()


@pytest.fixture
def environ(database_url: str, nats_url: str) -> dict[str, str]:
    """Environment of a worker, with configured streams that only this test uses.

    Change it before settings are loaded from it; after a change of the topology, call `configure`.
    """
    return configured(worker_environ(database_url, nats_url))


@pytest.fixture
def stream(environ: dict[str, str]) -> Iterator[Stream]:
    """Stream of this test, to publish and read messages."""
    with Stream(environ) as stream:
        yield stream


@pytest.fixture
def _command(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo the changes that a command makes to its process, which is the test process here."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    level = logger.log_level
    yield
    logger.setLevel(level)
