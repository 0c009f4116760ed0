"""Checks of this machine: Python, tools, disk, permissions and ports."""

from __future__ import annotations

import platform
import shutil
import stat
from typing import TYPE_CHECKING

from grantwire_cli.checks.findings import Finding, ok, problem, warning
from infra.local.paths import DESCRIPTION, STATE
from infra.local.servers.server import Server
from infra.local.system import ports, unprivileged
from infra.local.toolchain import environments, interpreter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.stack.deployed import DeployedStack

LITTLE_DISK = 2 * 1024**3
NO_DISK = 300 * 1024**2
OTHERS = stat.S_IRWXG | stat.S_IRWXO
SECRETS = (DESCRIPTION, "token", "nats/users.json", "postgres/password", "postgres/password.grantwire")


def check_machine() -> Iterator[Finding]:
    """Yield the findings about Python, the installed tools, the disk and the permissions of the state folder."""
    if interpreter.is_supported():
        yield ok("Python", f"Python {platform.python_version()}")
    else:
        text = f"this is Python {platform.python_version()}, not {interpreter.RANGE}"
        yield problem("Python", text, interpreter.HINT)
    stale = [item.title for item in (environments.DEVELOPMENT, environments.EMULATOR) if not item.is_ready]
    if stale:
        yield problem("tools", f"not installed from the current locks: {', '.join(stale)}", "make up")
    else:
        yield ok("tools", "installed from the current locks")
    yield _check_disk()
    yield from _check_permissions()


def _check_disk() -> Finding:
    free = shutil.disk_usage(STATE if STATE.exists() else STATE.parent).free
    text = f"{free / 1024**3:.1f} GiB free at {STATE}"
    if free < NO_DISK:
        return problem("disk", text, "free some space, or `make clean` to delete the stack with its data")
    return warning("disk", text, "free some space") if free < LITTLE_DISK else ok("disk", text)


def _check_permissions() -> Iterator[Finding]:
    """Yield a finding for each file with secrets, and for the state folder, that other accounts can read."""
    wrong = []
    if STATE.exists() and stat.S_IMODE(STATE.stat().st_mode) & OTHERS & ~unprivileged.enterable_mode():
        wrong.append((STATE, f"{unprivileged.enterable_mode():o}"))
    wrong += [
        (STATE / name, "600") for name in SECRETS if (STATE / name).is_file() and (STATE / name).stat().st_mode & OTHERS
    ]
    for path, mode in wrong:
        yield problem("permissions", f"other accounts can access {path}", f"chmod {mode} {path}")
    if not wrong:
        yield ok("permissions", f"only this account can read {STATE}")


def check_servers(stack: DeployedStack) -> Iterator[Finding]:
    """Yield a finding for each server: whether it runs, and whether another program has its port."""
    up = "make up" if stack.kind == "embedded" else f"make up STACK={stack.kind}"
    for server in stack.servers:
        if server.is_alive():
            process = f"pid {server.pid}" if server.pid else "in a container"
            yield ok("servers", f"{server.name} runs, {process}, port {server.port}")
        elif isinstance(server, Server) and server.port and not ports.is_port_free(server.port):
            message = f"{server.name} does not run, and another program uses its port {server.port}"
            yield problem("ports", message, f"{server.port_variable}=PORT {up}, or end that program")
        else:
            yield problem("servers", f"{server.name} does not run", up)
