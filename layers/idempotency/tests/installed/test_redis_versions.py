"""C23: the oldest redis-py that the library accepts, whose pools and errors are different from those of the newest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from layers.idempotency.tests.integration.test_busy import call_busy_job

if TYPE_CHECKING:
    from tests.support.valkey import ValkeyServer

OLDEST = "5.0.1"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with that version."""
    folder = str(tmp_path_factory.mktemp("redis"))
    uv = str(Path(sys.executable).with_name("uv"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", folder, f"redis=={OLDEST}"]
    subprocess.run(command, env=environment, check=True)
    return folder


@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", ["plain", "connect"])
@pytest.mark.parametrize(("callers", "keys"), [("tasks", 200), ("threads", 150)])
def test_each_key_runs_once_with_the_oldest_client(
    callers: str, keys: int, client: str, packages: str, valkey_server: ValkeyServer
) -> None:
    """C23: 400 tasks and 300 threads with 100 connections, in OPEN."""
    report = call_busy_job(valkey_server.url, callers, client, packages)
    assert report["redis"] == OLDEST
    assert report["runs"] == {str(number): 1 for number in range(keys)}
    assert report["errors"].keys() <= {"", "RequestInProgressError"}
