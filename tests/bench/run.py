"""The servers of a run, in a folder named after its process.

They stop when the run ends. The servers of a killed run are stopped by the next run.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.paths import STATE
from infra.local.servers.group import destroy_servers_below
from infra.local.system import temporary
from infra.local.system.runs import list_abandoned, run_folder
from tests.bench.servers import Servers
from tests.support.valkey import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infra.local.progress import Progress

FOLDER = STATE / "bench"
LOGS = FOLDER / "logs"


@contextlib.contextmanager
def start_servers(progress: Progress) -> Iterator[Servers]:
    """Start the servers of a run and remove them afterwards. After a failure, their logs are kept in LOGS."""
    for folder in list_abandoned(FOLDER):
        _remove(folder)
    state = run_folder(FOLDER)
    temporary.use(state / "tmp")
    with contextlib.ExitStack() as stack:
        stack.callback(_remove, state)  # also if one server started and another failed to start
        try:
            with progress.step("Starting PostgreSQL, NATS and Valkey"):
                servers = stack.enter_context(Servers(state))
            yield servers
        except Exception as error:
            _keep_logs(state)
            if isinstance(error, CommandError) and error.log and error.log.is_relative_to(state):
                error.log = LOGS / error.log.name
            raise


def _keep_logs(state: Path) -> None:
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    for log in state.rglob("*.log"):
        shutil.copy(log, LOGS)


def _remove(folder: Path) -> None:
    destroy_servers_below(folder, ValkeyServer)
    shutil.rmtree(folder, ignore_errors=True)
