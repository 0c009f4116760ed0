"""`make down` and `make clean`: stop the stack, with nothing installed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from infra.local.containers.compose import Compose
from infra.local.errors import CommandError
from infra.local.paths import STATE
from infra.local.servers.group import ServerGroup, stop_below
from infra.local.system import memory, unprivileged
from infra.local.system.locks import exclusive
from infra.local.toolchain import environments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress


def down(_arguments: Sequence[str], progress: Progress) -> int:
    """Stop the checkout's stack."""
    stop(progress)
    progress.say("The stack is down.")
    return 0


def clean(_arguments: Sequence[str], progress: Progress) -> int:
    """Stop the checkout's stack, also what interrupted tests left running, and delete all that was made."""
    stop(progress, volumes=True)
    stop_below(STATE / "test")
    stop_below(STATE / "bench")
    stop_below(memory.memory())
    with progress.step(f"Removing {STATE}"):
        memory.remove_all()
        unprivileged.remove_outside()
        shutil.rmtree(STATE, ignore_errors=True)
    return 0


def stop(progress: Progress, *, volumes: bool = False) -> None:
    """Stop whatever the checkout has started; with `volumes`, also delete what containers kept."""
    if not STATE.exists():
        return
    environments.end_leftover()
    ServerGroup(STATE, progress=progress).down()
    compose = Compose(STATE / "localstack")
    if compose.started() or (volumes and compose.used()):
        with exclusive(compose.state / "stack.lock", progress):
            _stop_containers(compose, progress, volumes=volumes)


def _stop_containers(compose: Compose, progress: Progress, *, volumes: bool) -> None:
    try:
        compose.check()
    except CommandError as error:
        progress.say(f"{error} LocalStack's containers and volumes are left as they are.")
        return
    with progress.step("Stopping LocalStack, PostgreSQL and NATS"):
        compose.down(volumes=volumes)
