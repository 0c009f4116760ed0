"""Commands that need nothing installed."""

from __future__ import annotations

import json
import shlex
import shutil
from typing import TYPE_CHECKING, Any

from infra.local import environments, scratch, unprivileged
from infra.local.backing import Backing, stop_below
from infra.local.compose import Compose
from infra.local.environments import STATE
from infra.local.errors import LocalStackError
from infra.local.locks import exclusive

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
    stop_below(scratch.memory())
    with progress.step(f"Removing {STATE}"):
        scratch.forget()
        unprivileged.remove_outside()
        shutil.rmtree(STATE, ignore_errors=True)
    return 0


def env(_arguments: Sequence[str], progress: Progress) -> int:
    """Print the variables that the README's requests use."""
    found = description()
    for name, key in (("GRANTWIRE_API", "api_url"), ("GRANTWIRE_TOKEN", "token")):
        progress.say(f"export {name}={shlex.quote(found[key])}")
    return 0


def description() -> dict[str, Any]:
    """Read what `make up` wrote for scripts."""
    try:
        found: dict[str, Any] = json.loads((STATE / "stack.json").read_text())
    except FileNotFoundError:
        raise LocalStackError("The stack is not up.", hint="Start it with `make up`.") from None
    return found


def stop(progress: Progress, *, volumes: bool = False) -> None:
    """Stop whatever the checkout has started; with `volumes`, also delete what containers kept."""
    if not STATE.exists():
        return
    environments.end_leftover()
    Backing(STATE, progress=progress).down()
    compose = Compose(STATE / "localstack")
    if compose.started() or (volumes and compose.used()):
        with exclusive(compose.state / "stack.lock", progress):
            _stop_containers(compose, progress, volumes=volumes)


def _stop_containers(compose: Compose, progress: Progress, *, volumes: bool) -> None:
    try:
        compose.check()
    except LocalStackError as error:
        progress.say(f"{error} LocalStack's containers and volumes are left as they are.")
        return
    with progress.step("Stopping LocalStack, PostgreSQL and NATS"):
        compose.down(volumes=volumes)
    (STATE / "stack.json").unlink(missing_ok=True)
