"""The functions in containers of `sam local`, with servers on this machine."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, Any

from infra.local.containers.sam_local import SAM, SamLocal
from infra.local.deployment.template import logical_names
from infra.local.paths import EVENTS
from infra.local.system.ports import HOST, find_free_port
from infra.local.system.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from infra.local.containers.engine import Engine

# The template's parameter behind each variable that a test sets.
PARAMETERS = {
    "DATABASE_URL": "DatabaseUrl",
    "CLIENTS_DATABASE_URL": "ClientsDatabaseUrl",
    "NATS_URL": "NatsUrl",
    "ENTITLEMENT_NATS_SUBJECT": "EventSubject",
    "ENTITLEMENT_NATS_STREAM": "EventStream",
    "TOKEN_ENVIRONMENT": "TokenEnvironment",
}
# The server of `sam local start-api` decodes the path.
LOCAL = {"Stage": "local", "InboxEnabled": "true", "GatewayDecodesPath": "true"}
RESPONSE_TIMEOUT_SECONDS = 300.0  # the first time, the image is pulled and the layer is added to it
STOP_TIMEOUT_SECONDS = 30.0


class Sandbox:
    """A build and the engine that runs it."""

    def __init__(self, sam: SamLocal, engine: Engine, log: Path) -> None:
        self._sam = sam
        self._engine = engine
        self._log = log

    def invoke(self, name: str, environ: Mapping[str, str]) -> Any:
        """Run `sam local invoke` with the function's event file, and return the function's result."""
        with self._options(environ) as options:
            event = ("--event", EVENTS / f"{name}.json")
            command = [SAM, "local", "invoke", logical_names()[name], *event, *options]
            code, output, errors = _run(command, self._sam.environment)
        assert code == 0, errors
        result = json.loads(output)
        assert "errorMessage" not in result, errors
        return result

    @contextlib.contextmanager
    def api(self, environ: Mapping[str, str]) -> Iterator[str]:
        """Run `sam local start-api` inside the block; yield the API's address."""
        port = find_free_port()
        server = ["local", "start-api", "--host", HOST, "--port", str(port), "--warm-containers", "LAZY", "--no-watch"]
        with self._options(environ) as options, self._log.open("ab") as log:
            command = [SAM, *server, *options]
            with subprocess.Popen(command, env=self._sam.environment, stdout=log, stderr=log) as child:
                try:
                    assert wait_until(
                        lambda: _accepts_connections(port) or child.poll() is not None,
                        RESPONSE_TIMEOUT_SECONDS,
                        every=0.1,
                    )
                    assert child.poll() is None, self._log.read_text()
                    yield f"http://{HOST}:{port}"
                finally:
                    child.send_signal(signal.SIGTERM)  # SAM removes its containers
                    child.wait(STOP_TIMEOUT_SECONDS)

    @contextlib.contextmanager
    def _options(self, environ: Mapping[str, str]) -> Iterator[list[str | Path]]:
        parameters = {PARAMETERS[name]: value for name, value in environ.items() if name in PARAMETERS}
        parameters["Settings"] = f"NOTIFICATION_NATS_DURABLE={environ['NOTIFICATION_NATS_DURABLE']}"
        with self._sam.options(self._engine, {**parameters, **LOCAL}) as options:
            yield options


def _run(command: Sequence[str | Path], environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Run SAM and return its exit code, output and errors; if it is interrupted or too slow, it leaves no container."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            output, errors = child.communicate(timeout=RESPONSE_TIMEOUT_SECONDS)
        except BaseException:
            child.send_signal(signal.SIGINT)  # SAM removes its container, and then waits for a timer
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(STOP_TIMEOUT_SECONDS)
            child.kill()
            raise
    return child.returncode, output, errors


def _accepts_connections(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
