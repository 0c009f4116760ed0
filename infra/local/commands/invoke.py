"""`make invoke`: run one function in a container, as Lambda does, with the servers of the running stack."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from infra.local.containers import engine
from infra.local.containers.sam_local import SAM, SamLocal, available_target, build_functions
from infra.local.deployment.template import logical_names
from infra.local.errors import CommandError
from infra.local.paths import CHECKOUT, EVENTS, STATE
from infra.local.stack import selection
from infra.local.stack.description import read_description
from infra.local.system.processes import defer_interrupts, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from infra.local.deployment.target import Target
    from infra.local.progress import Progress
    from infra.local.stack.deployed import DeployedStack

USAGE = "Usage: make invoke FN=NAME [ARGS=options of `sam local invoke`]. NAME is one of: {names}"
REMOVAL_TIMEOUT_SECONDS = 5.0


def invoke(arguments: Sequence[str], progress: Progress) -> int:
    """Invoke a function with its event file, or with that of `--event`, and return SAM's exit code."""
    function, event = _find_function(arguments[0] if arguments else "")
    addresses = _addresses()
    stack = selection.current_stack(progress)
    with engine.connect_engine() as containers:
        target = available_target(containers)
        sam = SamLocal(STATE / "invoke", _build(stack, target), target)
        if function not in sam.template["Resources"]:
            raise CommandError(f"{function} is not built.", hint="Build it with `make up`.")
        if not containers.has_image(sam.image):
            progress.print_line(f"SAM first pulls the image {sam.image}, which may take some minutes.")
        with sam.options(
            containers, stack.deployment.parameters | addresses | {"TopologyNatsUrl": stack.nats_topology_url}
        ) as options:
            command = [SAM, "local", "invoke", function, "--event", event, *options, *arguments[1:]]
            code = _run(command, sam.environment)
    progress.print_line("")  # SAM does not end its last line
    return code


def _find_function(name: str) -> tuple[str, Path]:
    """Return the logical name of a function and its event file."""
    names = logical_names()
    if name not in names:
        problem = f"There is no function {name}." if name else "FN is missing."
        raise CommandError(problem, hint=USAGE.format(names=", ".join(sorted(names))))
    return names[name], EVENTS / f"{name}.json"


def _addresses() -> dict[str, str]:
    """Return the running stack's addresses on this machine, as parameters of the template."""
    stack = read_description()
    for address in map(urlsplit, (stack["database_url"], stack["nats_url"])):
        try:
            socket.create_connection((address.hostname or "", address.port or 0), timeout=5).close()
        except OSError as error:
            raise CommandError("The stack is not up.", hint="Start it with `make up`.") from error
    return {
        "DatabaseUrl": stack["database_url"],
        "ClientsDatabaseUrl": stack["clients_database_url"],
        "NatsUrl": stack["nats_url"],
    }


def _build(stack: DeployedStack, target: Target) -> Path:
    """Return the running stack's build if its packages are those of the target; otherwise a separate build."""
    folder = stack.deployment.build
    if target.runs_here and stack.deployment.target == target and (folder / "template.yaml").exists():
        return folder
    with stack.progress.step(f"Building the functions for {target.runtime} on {target.architecture}"):
        return build_functions(STATE / "invoke", target)


def _run(command: Sequence[str | Path], environment: dict[str, str]) -> int:
    """Run SAM with this terminal's output, and return its exit code.

    After an interrupt, SAM removes its container and then waits for a timer. It is killed before that.
    """
    sys.stdout.flush()
    with subprocess.Popen(command, env=environment, cwd=CHECKOUT, start_new_session=True) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:
            with defer_interrupts():
                child.send_signal(signal.SIGINT)
                wait_until(lambda: child.poll() is not None, REMOVAL_TIMEOUT_SECONDS)
                child.kill()
            raise
