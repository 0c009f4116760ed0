from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.deployed import http, invalid_headers, receiver, running_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.stack.embedded import EmbeddedStack
    from tests.support.receiver import Receiver

__all__ = ["http", "invalid_headers", "receiver"]


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest, receiver: Receiver) -> Iterator[EmbeddedStack]:
    """A separate stack for the tests, with the template built and deployed."""
    with running_stack("deployments", receiver, request.config) as stack:
        yield stack
