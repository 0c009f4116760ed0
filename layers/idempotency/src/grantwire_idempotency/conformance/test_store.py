"""Run the suite on the store of the variable IDEMPOTENCY_STORE; see the package."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from grantwire_idempotency.conformance.harness import MemoryHarness
from grantwire_idempotency.conformance.suite import StoreConformance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire_idempotency.conformance.harness import Harness


class TestStore(StoreConformance):
    """The store that the variable names."""

    @pytest.fixture(scope="class")
    def open_harness(self) -> Iterator[Harness]:
        """Create the harness once."""
        name = os.environ.get("IDEMPOTENCY_STORE", "")  # noqa: TID251 - the command line of the suite
        module, _, function = name.partition(":")
        harness: Harness = getattr(import_module(module), function)() if name else MemoryHarness()
        yield harness
        harness.close()

    @pytest.fixture
    def harness(self, open_harness: Harness) -> Harness:
        """Return the harness with an empty store."""
        open_harness.reset()
        return open_harness
