"""The files of one test run: a state folder for its servers, with a temporary directory inside."""

from __future__ import annotations

import os
import shutil

from infra.local.servers.group import destroy_servers_below
from infra.local.system import memory, temporary
from infra.local.system.runs import run_folder
from tests.support.paths import PYTHONPATH, ROOT

STATE = run_folder(ROOT / ".grantwire" / "test")


def program_environment() -> dict[str, str]:
    """Return the environment for a subprocess: it can import the layer and shares this run's temporary directory."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, temporary.VARIABLE: os.environ[temporary.VARIABLE]}


def begin() -> None:
    """Keep the temporary files of this process and of its subprocesses in the folder of this run."""
    temporary.use(STATE / "tmp")


def end() -> None:
    """Stop every server of this run and delete its folders."""
    for folder in (STATE, memory.memory_folder() / STATE.name):
        destroy_servers_below(folder)
    memory.remove(STATE)
    shutil.rmtree(STATE, ignore_errors=True)
