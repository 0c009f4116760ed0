"""`make down` and `make clean`: stop the stack. They also work with nothing installed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from infra.local.containers.compose import Compose
from infra.local.errors import CommandError
from infra.local.paths import STATE
from infra.local.servers.group import ServerGroup, destroy_servers_below
from infra.local.system import memory, unprivileged
from infra.local.system.locks import hold_lock, stack_lock
from infra.local.toolchain import environments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress


def down(_arguments: Sequence[str], progress: Progress) -> int:
    """Stop the checkout's stack and keep its data."""
    stop(progress)
    progress.print_line("The stack is down.")
    return 0


def clean(_arguments: Sequence[str], progress: Progress) -> int:
    """Stop the checkout's stack and the servers of interrupted tests, and delete everything that was created."""
    stop(progress, volumes=True)
    destroy_servers_below(STATE / "test")
    destroy_servers_below(STATE / "bench")
    destroy_servers_below(memory.memory_folder())
    with progress.step(f"Removing {STATE}"):
        memory.remove_all()
        unprivileged.remove_external_folder()
        shutil.rmtree(STATE, ignore_errors=True)
    return 0


def stop(progress: Progress, *, volumes: bool = False) -> None:
    """Stop the installer, servers and containers of the checkout; with `volumes`, delete the containers' data."""
    if not STATE.exists():
        return
    environments.stop_abandoned_installer()
    ServerGroup(STATE, progress=progress).down()
    compose = Compose(STATE / "localstack")
    if compose.may_have_containers() or (volumes and compose.may_have_volumes()):
        with hold_lock(stack_lock(STATE), progress):
            _stop_containers(compose, progress, volumes=volumes)


def _stop_containers(compose: Compose, progress: Progress, *, volumes: bool) -> None:
    try:
        compose.check_available()
    except CommandError as error:
        progress.print_line(f"{error} LocalStack's containers and volumes are not removed.")
        return
    with progress.step("Stopping LocalStack, PostgreSQL and NATS"):
        compose.down(volumes=volumes)
