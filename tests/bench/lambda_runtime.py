"""Lambda's own runtime on this machine: it starts a function in a new process for one event.

The runtime interface emulator starts the runtime when the event arrives, and logs the Init Duration of AWS: from the
start of the process until it requests an event. This includes the interpreter, the runtime and the handler's imports.
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
import tempfile
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
_TIMEOUT_SECONDS = 90.0  # longer than the whole minute of a worker
_READY = re.compile(r"INIT REPORT\(durationMs: ([\d.]+)\)")
_BILLED = re.compile(r"REPORT .*Billed Duration: ([\d.]+) ms")
_DONE = re.compile(r"INVOKE RTDONE\(status: success,.* duration: ([\d.]+)ms\)")
# The environment that Lambda gives to every function.
_ENVIRON = {
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
    "AWS_LAMBDA_LOG_FORMAT": "JSON",
    "AWS_LAMBDA_LOG_LEVEL": "INFO",
    "AWS_REGION": "us-east-1",
    "LANG": "en_US.UTF-8",
    "TZ": ":UTC",
}


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Cold start of a function: the init phase, the first request, and its response.

    `billed_ms` is the billed time of the last request, as its REPORT line says.
    """

    init_ms: float
    first_request_ms: float
    response: Any
    billed_ms: float


def install(folder: Path) -> Path:
    """Copy the runtime with its byte code into a folder, and return the folder.

    Nothing else is on the path of a function: our site-packages would hide a package that the layer lacks.
    """
    folder.mkdir()
    for name in _DISTRIBUTIONS:
        package = distribution(name)
        for part in {file.parts[0] for file in package.files or ()} - {".."}:
            source = Path(str(package.locate_file(part)))
            if source.is_dir():
                shutil.copytree(source, folder / part)
            else:
                shutil.copy(source, folder / part)
    # -I ignores PYTHONPYCACHEPREFIX, so that the byte code is written into this folder.
    subprocess.run([sys.executable, "-I", "-m", "compileall", "-qq", str(folder)], check=True)
    return folder


def start_function(
    function: Path, path: list[Path], environ: Mapping[str, str], event: Mapping[str, Any], *, requests: int = 1
) -> ColdStart:
    """Start the handler in the folder `function`, send it an event, and kill it. It imports from `path` only.

    The event is sent `requests` times, one after the other; the response is that of the last one. Raises RuntimeError
    if the init phase or the request fails.
    """
    port, api = find_free_port(), find_free_port()
    addresses = (
        *("--runtime-interface-emulator-address", f"{HOST}:{port}"),
        *("--runtime-api-address", f"{HOST}:{api}"),
    )
    with tempfile.TemporaryFile("w+") as output:  # of the function, with the REPORT lines
        emulator = subprocess.Popen(
            # -S: no site-packages. -B: write no byte code, because layers are read-only on Lambda.
            [_emulator(), *addresses, sys.executable, "-S", "-B", "-m", "awslambdaric", "handler.handler"],
            cwd=function,
            env={
                **_ENVIRON,
                **environ,
                "PYTHONPATH": os.pathsep.join(map(str, path)),
                "LAMBDA_TASK_ROOT": str(function),
            },
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            response = [_invoke(port, event) for _ in range(requests)][-1]
        finally:
            os.killpg(emulator.pid, signal.SIGKILL)
            _, log = emulator.communicate()
        output.seek(0)
        billed = _BILLED.findall(output.read())
    ready, done = _READY.search(log), _DONE.search(log)
    if ready is None or done is None or not billed:
        raise RuntimeError(f"{function} failed with {response}:\n{log}")
    return ColdStart(float(ready[1]), float(done[1]), response, float(billed[-1]))


def _invoke(port: int, event: Mapping[str, Any]) -> Any:
    if not wait_until(lambda: not is_port_free(port), _TIMEOUT_SECONDS, every=0.005):
        raise RuntimeError("the runtime interface emulator does not accept connections")
    connection = http.client.HTTPConnection(HOST, port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("POST", _INVOCATIONS, json.dumps(event))
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def _emulator() -> Path:
    """Return the path of the emulator, which is part of SAM."""
    package = find_spec("samcli")
    if package is None or not package.submodule_search_locations:
        raise RuntimeError("SAM is not installed")
    machine = "arm64" if platform.machine() in {"arm64", "aarch64"} else "x86_64"
    return Path(package.submodule_search_locations[0]) / "local" / "rapid" / f"aws-lambda-rie-{machine}"
