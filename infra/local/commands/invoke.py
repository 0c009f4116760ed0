"""`make invoke`: one function in a container as Lambda runs it, against the servers of the running stack."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from infra.local.containers import engine
from infra.local.containers.sam_local import SAM, SamLocal, build
from infra.local.deployment.sam import on_lambda_platform
from infra.local.deployment.template import logical_names
from infra.local.errors import CommandError
from infra.local.paths import CHECKOUT, EVENTS, STATE
from infra.local.stack import kinds
from infra.local.stack.description import read_description
from infra.local.system.processes import uninterrupted, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from infra.local.progress import Progress
    from infra.local.stack.deployed import DeployedStack

USAGE = "make invoke FN=NAME, and options of `sam local invoke` as ARGS=...; NAME is one of: {names}"
REMOVES_WITHIN = 5.0


def invoke(arguments: Sequence[str], progress: Progress) -> int:
    """Invoke a function with its event file, or the one that `--event` names; the exit code is SAM's."""
    function, event = _chosen(arguments[0] if arguments else "")
    addresses = _addresses()
    stack = kinds.current(progress)
    with engine.connected() as containers:
        sam = SamLocal(STATE / "invoke", _build(stack))
        if function not in sam.template["Resources"]:
            raise CommandError(f"{function} has not been built.", hint="`make up` builds it.")
        if not containers.has_image(sam.image):
            progress.say(f"SAM pulls {sam.image} first, which takes a while.")
        with sam.options(containers, stack.deployment.parameters | addresses) as options:
            command = [SAM, "local", "invoke", function, "--event", event, *options, *arguments[1:]]
            code = _run(command, sam.environment)
    progress.say("")  # SAM does not end its last line
    return code


def _chosen(name: str) -> tuple[str, Path]:
    names = logical_names()
    if name not in names:
        problem = f"There is no function {name}." if name else "Which function?"
        raise CommandError(problem, hint=USAGE.format(names=", ".join(sorted(names))))
    return names[name], EVENTS / f"{name}.json"


def _addresses() -> dict[str, str]:
    """Give the running stack's addresses on this machine, as parameters of the template."""
    found = read_description()
    for address in map(urlsplit, (found["database_url"], found["nats_url"])):
        try:
            socket.create_connection((address.hostname or "", address.port or 0), timeout=5).close()
        except OSError as error:
            raise CommandError("The stack is not up.", hint="Start it with `make up`.") from error
    return {"DatabaseUrl": found["database_url"], "NatsUrl": found["nats_url"]}


def _build(stack: DeployedStack) -> Path:
    """Give the running stack's build; elsewhere than on Lambda's own platform, that may hold the host's packages."""
    built = stack.deployment.build
    if on_lambda_platform() and (built / "template.yaml").exists():
        return built
    with stack.progress.step("Building the functions for Lambda"):
        return build(STATE / "invoke")


def _run(command: Sequence[str | Path], environment: dict[str, str]) -> int:
    """Run SAM with our output. After an interrupt it removes its container, but waits for a timer before it ends."""
    sys.stdout.flush()
    with subprocess.Popen(command, env=environment, cwd=CHECKOUT, start_new_session=True) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:
            with uninterrupted():
                child.send_signal(signal.SIGINT)
                wait_until(lambda: child.poll() is not None, REMOVES_WITHIN)
                child.kill()
            raise
