from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from infra.local.progress import Progress
from infra.local.stack.embedded import EmbeddedStack
from tests.e2e.callers import create_invalid_headers
from tests.e2e.command import Grantwire
from tests.e2e.http import Http
from tests.support.receiver import Receiver
from tests.support.servers import STATE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    """The receiver of the stack's notifications."""
    with Receiver() as server:
        yield server


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest, receiver: Receiver) -> Iterator[EmbeddedStack]:
    """A separate stack for the tests, with the template built and deployed, which notifies the receiver."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    stack = EmbeddedStack(
        STATE / "e2e",
        progress=Progress(),
        parameters=receiver.parameters,
        database_settings={"fsync": "off"},
    )
    try:
        with capture.global_and_fixture_disabled():
            stack.up()
        yield stack
    finally:
        stack.down()
        stack.postgres.destroy()
        shutil.rmtree(STATE / "e2e", ignore_errors=True)


@pytest.fixture
def http(stack: EmbeddedStack) -> Http:
    """The development client of the deployed API, with all scopes."""
    return Http(stack.api_url, stack.token)


@pytest.fixture
def grantwire(stack: EmbeddedStack, tmp_path: Path) -> Grantwire:
    """The installed command, as a person at a terminal uses it."""
    return Grantwire(stack.api_url, stack.token, tmp_path)


@pytest.fixture(scope="session")
def invalid_headers(stack: EmbeddedStack) -> dict[str, str | None]:
    """Authorization headers that are valid for no route, by what is wrong with them."""
    return create_invalid_headers(stack)
