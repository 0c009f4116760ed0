from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from grantwire.observability import log

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def debug() -> Iterator[None]:
    """Log everything."""
    log.setLevel(logging.DEBUG)
    yield
    log.setLevel(logging.INFO)
