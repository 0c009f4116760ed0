"""What a run was measured on: the processors, the kernel, and the exact version of everything that took part."""

from __future__ import annotations

import json
import os
import platform
import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from redis import Redis

from infra.local.system.ports import HOST

if TYPE_CHECKING:
    from tests.bench.servers import Servers

_PACKAGES = (
    "psycopg",
    "nats-py",
    "protobuf",
    "aws-lambda-powertools",
    "redis",
    "pgqueuer",
    "awslambdaric",
)


def describe(servers: Servers) -> dict[str, str]:
    """Name each part and its version; a package that is not installed took no part."""
    found = {
        "Processors": f"{os.cpu_count()}, {_processor()}",
        "Kernel": f"{platform.system()} {platform.release()}",
        "PostgreSQL": _postgres(servers),
        "nats-server": _nats(servers),
        "Valkey": _valkey(servers),
        "Python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(models), platform.processor() or platform.machine())


def _postgres(servers: Servers) -> str:
    with psycopg.connect(servers.postgres.url()) as connection:
        return connection.info.parameter_status("server_version") or ""


def _nats(servers: Servers) -> str:
    """NATS introduces itself to every client: INFO {…}."""
    with socket.create_connection((HOST, servers.nats.port)) as client, client.makefile("rb") as lines:
        return str(json.loads(lines.readline().removeprefix(b"INFO "))["version"])


def _valkey(servers: Servers) -> str:
    with Redis.from_url(servers.valkey.url) as client:
        return str(client.info("server")["valkey_version"])
