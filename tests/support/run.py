"""What belongs to one run of the tests: a state folder for its servers, and a temporary directory inside it."""

from __future__ import annotations

import os
import shutil

from infra.local.servers.group import destroy_servers_below
from infra.local.system import memory, temporary
from infra.local.system.runs import run_folder
from tests.support.paths import PYTHONPATH, ROOT

STATE = run_folder(ROOT / ".grantwire" / "test")


def program_environment() -> dict[str, str]:
    """Give the environment of a program that tests start: it finds the layer, and writes where this process does."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, temporary.VARIABLE: os.environ[temporary.VARIABLE]}


def begin() -> None:
    """Keep temporary files of this process, and of the programs that it starts, in the run's own folder."""
    temporary.use(STATE / "tmp")


def end() -> None:
    """Leave nothing behind: no server, no folder."""
    for folder in (STATE, memory.memory_folder() / STATE.name):
        destroy_servers_below(folder)
    memory.remove(STATE)
    shutil.rmtree(STATE, ignore_errors=True)
