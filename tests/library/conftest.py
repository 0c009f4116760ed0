"""The servers of the integration tests, without their other fixtures."""

from __future__ import annotations

from tests.integration.conftest import databases, valkey_server

__all__ = ["databases", "valkey_server"]
