from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from infra.local.errors import CommandError
from tests.support.localstack_process import LocalStackProcess, install
from tests.support.servers import STATE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A folder for LocalStack and the deployment, below that of the test run."""
    path = STATE / "localstack"
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def localstack(folder: Path, request: pytest.FixtureRequest) -> Iterator[LocalStackProcess]:
    """LocalStack 4.14.0; the tests are skipped where it cannot be installed."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            install()
    except CommandError as error:
        log = f" See {error.log}." if error.log else ""
        pytest.skip(f"LocalStack 4.14.0 cannot be installed: {error}{log}")
    server = LocalStackProcess(folder / "server")
    try:
        server.start()
        yield server
    finally:
        server.destroy()
