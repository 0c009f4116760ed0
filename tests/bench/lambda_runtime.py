"""Lambda's own runtime on this machine: a function in a process of its own, started for one event.

The runtime interface emulator starts the runtime when the event arrives and writes down what AWS calls Init Duration:
from the start of the process until it asks for an event, with the interpreter, the runtime and the handler's imports.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.local.system.ports import HOST, find_free_port, is_port_free
from infra.local.system.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

_DISTRIBUTIONS = ("awslambdaric", "simplejson", "snapshot-restore-py")
_INVOCATIONS = "/2015-03-31/functions/function/invocations"
_PATIENCE = 30.0
_READY = re.compile(r"INIT REPORT\(durationMs: ([\d.]+)\)")
_DONE = re.compile(r"INVOKE RTDONE\(status: success,.* duration: ([\d.]+)ms\)")
# What Lambda tells every function.
_ENVIRON = {
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
    "AWS_LAMBDA_LOG_FORMAT": "JSON",
    "AWS_LAMBDA_LOG_LEVEL": "INFO",
    "AWS_REGION": "us-east-1",
    "LANG": "en_US.UTF-8",
    "TZ": ":UTC",
}


@dataclass(frozen=True, slots=True)
class Start:
    """A cold start in milliseconds: until the function was ready, and then its first request; and what it answered."""

    ready: float
    first: float
    answer: Any


def install(folder: Path) -> Path:
    """The runtime alone, with its byte code as on Lambda: our site-packages would hide what a layer lacks."""
    folder.mkdir()
    for name in _DISTRIBUTIONS:
        found = distribution(name)
        for part in {file.parts[0] for file in found.files or ()} - {".."}:
            source = Path(str(found.locate_file(part)))
            if source.is_dir():
                shutil.copytree(source, folder / part)
            else:
                shutil.copy(source, folder / part)
    # -I: into this folder, whatever PYTHONPYCACHEPREFIX says.
    subprocess.run([sys.executable, "-I", "-m", "compileall", "-qq", str(folder)], check=True)
    return folder


def start(function: Path, path: list[Path], environ: Mapping[str, str], event: Mapping[str, Any]) -> Start:
    """Start the handler in a folder with one event, with nothing but `path` to import from, and end it."""
    port, api = find_free_port(), find_free_port()
    addresses = (
        *("--runtime-interface-emulator-address", f"{HOST}:{port}"),
        *("--runtime-api-address", f"{HOST}:{api}"),
    )
    emulator = subprocess.Popen(
        # -S: no site-packages. -B: where layers are, Lambda can write no byte code either.
        [_emulator(), *addresses, sys.executable, "-S", "-B", "-m", "awslambdaric", "handler.handler"],
        cwd=function,
        env={**_ENVIRON, **environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "LAMBDA_TASK_ROOT": str(function)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        answer = _invoke(port, event)
    finally:
        os.killpg(emulator.pid, signal.SIGKILL)
        _, log = emulator.communicate()
    ready, done = _READY.search(log), _DONE.search(log)
    if ready is None or done is None:
        raise RuntimeError(f"{function} answers {answer}:\n{log}")
    return Start(float(ready[1]), float(done[1]), answer)


def _invoke(port: int, event: Mapping[str, Any]) -> Any:
    if not wait_until(lambda: not is_port_free(port), _PATIENCE, every=0.005):
        raise RuntimeError("the runtime interface emulator does not listen")
    connection = http.client.HTTPConnection(HOST, port, timeout=_PATIENCE)
    try:
        connection.request("POST", _INVOCATIONS, json.dumps(event))
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def _emulator() -> Path:
    """It comes with SAM, which puts it into its containers."""
    found = find_spec("samcli")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("SAM is not installed")
    machine = "arm64" if platform.machine() in {"arm64", "aarch64"} else "x86_64"
    return Path(found.submodule_search_locations[0]) / "local" / "rapid" / f"aws-lambda-rie-{machine}"
