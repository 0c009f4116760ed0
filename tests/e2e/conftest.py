from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.callers import create_invalid_headers
from tests.e2e.command import Grantwire
from tests.support.deployed import http, receiver, running_stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infra.local.stack.embedded import EmbeddedStack
    from tests.support.receiver import Receiver

__all__ = ["http", "receiver"]


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest, receiver: Receiver) -> Iterator[EmbeddedStack]:
    """A separate stack for the tests, with the template built and deployed, which notifies the receiver."""
    with running_stack("e2e", receiver, request.config) as stack:
        yield stack


@pytest.fixture
def grantwire(stack: EmbeddedStack, tmp_path: Path) -> Grantwire:
    """The installed command, as a person at a terminal uses it."""
    return Grantwire(stack.api_url, stack.token, tmp_path)


@pytest.fixture(scope="session")
def invalid_headers(stack: EmbeddedStack) -> dict[str, str | None]:
    """Authorization headers that are valid for no route, by what is wrong with them."""
    return create_invalid_headers(stack)
