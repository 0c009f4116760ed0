"""The machine of a run: processors, kernel, and the version of every server and package that took part."""

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
    """Return the version of each part. A package that is not installed is left out."""
    parts = {
        "Processors": f"{os.cpu_count()}, {_processor()}",
        "Kernel": f"{platform.system()} {platform.release()}",
        "PostgreSQL": _postgres(servers),
        "nats-server": _nats(servers),
        "Valkey": _valkey(servers),
        "Python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            parts[package] = version(package)
        except PackageNotFoundError:
            continue
    return parts


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
    """Return the version from the INFO message that NATS sends to every new client."""
    with socket.create_connection((HOST, servers.nats.port)) as client, client.makefile("rb") as lines:
        return str(json.loads(lines.readline().removeprefix(b"INFO "))["version"])


def _valkey(servers: Servers) -> str:
    with Redis.from_url(servers.valkey.url) as client:
        return str(client.info("server")["valkey_version"])
