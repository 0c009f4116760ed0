"""The functions as `sam local` runs them: in containers, with servers on this machine."""

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
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from infra.local.containers.engine import Engine

# The template's parameter behind each variable that a test sets.
PARAMETERS = {
    "DATABASE_URL": "DatabaseUrl",
    "NATS_URL": "NatsUrl",
    "ENTITLEMENT_NATS_SUBJECT": "EventSubject",
    "ENTITLEMENT_NATS_STREAM": "EventStream",
    "NOTIFICATION_NATS_DURABLE": "EventConsumer",
    "NOTIFICATION_NATS_ADVISORY_STREAM": "AdvisoryStream",
    "TOKEN_ENVIRONMENT": "TokenEnvironment",
}
ANSWERS_WITHIN = 300.0  # the first time, the image is pulled and the layer added to it
ENDS_WITHIN = 30.0


class Sandbox:
    """One build, and the engine that runs it."""

    def __init__(self, sam: SamLocal, engine: Engine, log: Path) -> None:
        self._sam = sam
        self._engine = engine
        self._log = log

    def invoke(self, name: str, environ: Mapping[str, str]) -> Any:
        """`sam local invoke` with the function's event file; what the function returns."""
        with self._options(environ) as options:
            done = subprocess.run(
                [SAM, "local", "invoke", logical_names()[name], "--event", EVENTS / f"{name}.json", *options],
                env=self._sam.environment,
                capture_output=True,
                text=True,
                timeout=ANSWERS_WITHIN,
                check=False,
            )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert "errorMessage" not in answer, done.stderr
        return answer

    @contextlib.contextmanager
    def api(self, environ: Mapping[str, str]) -> Iterator[str]:
        """`sam local start-api` while inside; the API's address."""
        port = find_free_port()
        server = ["local", "start-api", "--host", HOST, "--port", str(port), "--warm-containers", "LAZY", "--no-watch"]
        with self._options(environ) as options, self._log.open("ab") as log:
            command = [SAM, *server, *options]
            with subprocess.Popen(command, env=self._sam.environment, stdout=log, stderr=log) as child:
                try:
                    assert wait_until(lambda: _answers(port) or child.poll() is not None, ANSWERS_WITHIN, every=0.1)
                    assert child.poll() is None, self._log.read_text()
                    yield f"http://{HOST}:{port}"
                finally:
                    child.send_signal(signal.SIGTERM)  # SAM removes its containers
                    child.wait(ENDS_WITHIN)

    @contextlib.contextmanager
    def _options(self, environ: Mapping[str, str]) -> Iterator[list[str | Path]]:
        given = {PARAMETERS[name]: value for name, value in environ.items() if name in PARAMETERS}
        with self._sam.options(self._engine, {**given, "Stage": "local", "InboxEnabled": "true"}) as options:
            yield options


def _answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
