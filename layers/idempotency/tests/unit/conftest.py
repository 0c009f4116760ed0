from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    """Log at INFO and above, as most applications do."""
    caplog.set_level(logging.INFO, logger="grantwire_idempotency")


@pytest.fixture
def debug(caplog: pytest.LogCaptureFixture, info: None) -> None:  # noqa: ARG001 - after it
    """Log at all levels."""
    caplog.set_level(logging.DEBUG, logger="grantwire_idempotency")
