"""A deployed stack for the tests of a run."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import pytest

from infra.local.progress import Progress
from infra.local.stack.embedded import EmbeddedStack
from tests.e2e.callers import create_invalid_headers
from tests.e2e.http import Http
from tests.support.receiver import Receiver
from tests.support.servers import STATE

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def running_stack(name: str, receiver: Receiver, config: pytest.Config) -> Iterator[EmbeddedStack]:
    """Build and deploy the template to a separate stack, which notifies the receiver; its progress is printed."""
    capture = config.pluginmanager.getplugin("capturemanager")
    folder, settings = STATE / name, {"fsync": "off"}
    stack = EmbeddedStack(folder, progress=Progress(), parameters=receiver.parameters, database_settings=settings)
    try:
        with capture.global_and_fixture_disabled():
            stack.up()
        yield stack
    finally:
        for server in stack.servers:
            server.kill()
        stack.down()
        stack.postgres.destroy()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    """The receiver of the stack's notifications."""
    with Receiver() as server:
        yield server


@pytest.fixture
def http(stack: EmbeddedStack) -> Http:
    """The development client of the deployed API, with all scopes."""
    return Http(stack.api_url, stack.token)


@pytest.fixture(scope="session")
def invalid_headers(stack: EmbeddedStack) -> dict[str, str | None]:
    """Authorization headers that are valid for no route, by what is wrong with them."""
    return create_invalid_headers(stack)
