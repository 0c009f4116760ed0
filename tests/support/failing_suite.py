"""Tests that fail and leave sockets open, for `tests/unit/test_failures.py`; `make test` does not collect this file."""

from __future__ import annotations

import gc
import socket

import pytest


class Client:
    """Client that is freed only by the garbage collector."""

    def __init__(self) -> None:
        self.sockets = socket.socketpair()
        self.owner = self


@pytest.fixture
def broken() -> Client:
    """A fixture that fails after it has opened a socket."""
    client = Client()
    raise AssertionError(f"setup: {len(client.sockets)}")


@pytest.fixture
def kept() -> list[Client]:
    """Clients that no fixture closes."""
    return []


def test_fails_with_local_sockets() -> None:
    """Only the traceback refers to the sockets."""
    sockets = socket.socketpair()
    assert not sockets


def test_passes_after_a_failure() -> None:
    """Begins, when pytest frees the traceback of the test before it."""


def test_fails_with_a_local_client() -> None:
    """The traceback and the client itself refer to the client."""
    client = Client()
    assert not client.sockets


def test_passes_and_collects_garbage() -> None:
    """Any test may be the one during which the collector runs."""
    gc.collect()


def test_fails_with_a_client_in_a_fixture(kept: list[Client]) -> None:
    """The client is freed after the fixture."""
    kept.append(Client())
    assert not kept


@pytest.mark.usefixtures("broken")
def test_fails_in_its_setup() -> None:
    """Never runs."""


def test_passes_and_collects_garbage_after_a_failed_setup() -> None:
    """As above, after an error."""
    gc.collect()


def test_fails_at_the_end() -> None:
    """Nothing runs after it, except the end of pytest."""
    client = Client()
    assert not client.sockets
