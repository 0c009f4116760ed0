from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.command import Grantwire
from tests.support.deployed import http, invalid_headers, receiver, running_stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infra.local.stack.embedded import EmbeddedStack
    from tests.support.receiver import Receiver

__all__ = ["http", "invalid_headers", "receiver"]


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest, receiver: Receiver) -> Iterator[EmbeddedStack]:
    """A separate stack for the tests, with the template built and deployed, which notifies the receiver."""
    with running_stack("e2e", receiver, request.config) as stack:
        yield stack


@pytest.fixture
def grantwire(stack: EmbeddedStack, tmp_path: Path) -> Grantwire:
    """The installed command, as a person at a terminal uses it."""
    return Grantwire(stack.api_url, stack.token, tmp_path)
