"""The servers of a run, in a folder named by its process: they end with it, those of a killed run with the next one."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

from infra.local.backing import KINDS
from infra.local.environments import STATE
from infra.local.errors import LocalStackError
from infra.local.processes import identify
from tests.bench.servers import Servers
from tests.support.valkey import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infra.local.progress import Progress

FOLDER = STATE / "bench"
LOGS = FOLDER / "logs"


@contextlib.contextmanager
def running(progress: Progress) -> Iterator[Servers]:
    """Servers on disk; after a failure their logs stay in LOGS and nothing else does."""
    for folder in FOLDER.glob("run-*"):
        if identify(int(folder.name.removeprefix("run-"))) is None:
            _remove(folder)
    state = FOLDER / f"run-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        stack.callback(_remove, state)  # also of those that had started when another one could not
        try:
            with progress.step("Starting PostgreSQL, NATS and Valkey"):
                servers = stack.enter_context(Servers(state))
            yield servers
        except Exception as error:
            _keep_logs(state)
            if isinstance(error, LocalStackError) and error.log and error.log.is_relative_to(state):
                error.log = LOGS / error.log.name
            raise


def _keep_logs(state: Path) -> None:
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    for log in state.rglob("*.log"):
        shutil.copy(log, LOGS)


def _remove(folder: Path) -> None:
    for kind in (ValkeyServer, *reversed(KINDS)):
        for record in list(folder.rglob(f"{kind.name}.json")):  # before one of them goes with its folder
            kind(record.parent).destroy()
    shutil.rmtree(folder, ignore_errors=True)
