"""Cold starts of every built function under Lambda's own runtime, compared with a handler that does nothing."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString

from infra.local.deployment.sam import Deployment
from infra.local.deployment.template import load_template
from infra.local.servers.emulator import EmulatorServer
from infra.local.stack.development_client import TOKEN_ENVIRONMENT, development_token
from tests.bench import lambda_runtime
from tests.bench.results import Finding, Section
from tests.bench.rounds import Spread
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

TITLE = "Cold start"
EMPTY = "empty handler"

_SEED: LiteralString = """
INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at)
SELECT operation || '_' || n, 'item1', 'ACTIVE', 1, now()
  FROM generate_series(0, %s - 1) n, unnest(ARRAY['revoke', 'extend']) operation
"""
_METHOD = """\
The functions and the layer are built by `sam build`; only `awslambdaric` is added to their import path. A start is a
new process under the runtime interface emulator, which reports the init phase: interpreter, runtime and imports, with
the files in the page cache. The first request includes connecting to PostgreSQL and NATS on this machine. The first
request of a worker lasts until the worker is idle. On Lambda both take longer, because a function with 512 MB of memory
gets only a share of a CPU."""
_WITHOUT_BYTE_CODE = """\
The layer ships no byte code, and Lambda mounts it read-only. Every start compiles its imports, on Lambda and here."""


@dataclass(frozen=True, slots=True)
class ColdStarts:
    """Milliseconds of the init phase and of the first request, by function and round."""

    init: dict[str, list[float]] = field(default_factory=dict)
    first_request: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, start: lambda_runtime.ColdStart) -> None:
        """Add a start of a function."""
        self.init.setdefault(name, []).append(start.init_ms)
        self.first_request.setdefault(name, []).append(start.first_request_ms)

    def added_import_time(self, name: str) -> Spread:
        """Return by how much the init phase of a function is longer than that of the empty handler."""
        return Spread(tuple(init - empty for init, empty in zip(self.init[name], self.init[EMPTY], strict=True)))

    def table(self) -> str:
        """Return the table of all functions, in Markdown."""
        lines = [f"| function | import time above {EMPTY} | first request |", "| --- | ---: | ---: |"]
        for name in sorted(self.init.keys() - {EMPTY}):
            first_request = Spread(tuple(self.first_request[name]))
            lines.append(f"| {name} | {_ms(self.added_import_time(name))} | {_ms(first_request)} |")
        init, first_request = Spread(tuple(self.init[EMPTY])), Spread(tuple(self.first_request[EMPTY]))
        return "\n".join([*lines, f"| *{EMPTY}* | *{_ms(init)}* | *{_ms(first_request)}* |"])


class BuiltFunctions:
    """Built functions, and the servers that they use."""

    def __init__(self, servers: Servers, folder: Path, rounds: int) -> None:
        resources = load_template()["Resources"].items()
        functions = {
            name: resource["Properties"]
            for name, resource in resources
            if resource["Type"] == "AWS::Serverless::Function"
        }
        deployment = Deployment(folder, EmulatorServer(folder / "aws"), {})
        deployment.build_functions()
        self.layer = deployment.build / "CoreLayer" / "python"
        self._runtime = lambda_runtime.install(folder / "runtime")
        self._folders = {EMPTY: folder / "empty"}
        self._folders |= {
            properties["CodeUri"].rstrip("/").removeprefix("functions/"): deployment.build / name
            for name, properties in functions.items()
        }
        self._folders[EMPTY].mkdir()
        (self._folders[EMPTY] / "handler.py").write_text("def handler(event, context):\n    return {}\n")
        url = servers.database()
        with servers.owner(url) as owner:
            owner.execute(_SEED, (rounds,))
        settings = {"NOTIFICATION_INBOX_ENABLED": "true", "TOKEN_ENVIRONMENT": TOKEN_ENVIRONMENT}
        self._environ = servers.environ(url) | settings
        clients_url = servers.databases.url_for_clients(url)
        # Functions that have credentials of their own.
        self._own_environ = {
            "migrate_database": {"DATABASE_URL": servers.databases.url_for_owner(url)},
            "manage_clients": {"DATABASE_URL": clients_url},
            "operate_clients": {"DATABASE_URL": clients_url},
            "configure_streams": {"NATS_URL": servers.nats_admin_url},
        }
        self._token = development_token(clients_url, folder / "token")

    @property
    def names(self) -> list[str]:
        """Every function, and the empty handler."""
        return list(self._folders)

    def start(
        self, name: str, number: int, event: Mapping[str, Any] | None = None, *, requests: int = 1
    ) -> lambda_runtime.ColdStart:
        """Start a function in round `number`, with its example event or another one.

        Raises RuntimeError if it does not succeed.
        """
        environ = self._environ | {"AWS_LAMBDA_FUNCTION_NAME": name} | self._own_environ.get(name, {})
        if event is None:
            event = {} if name == EMPTY else self._event(name, number)
        path = [self.layer, self._runtime]
        start = lambda_runtime.start_function(self._folders[name], path, environ, event, requests=requests)
        response = start.response
        if "errorMessage" in response or response.get("statusCode", 200) != 200 or '"Deny"' in json.dumps(response):
            raise RuntimeError(f"{name} failed: {response}")
        return start

    def _event(self, name: str, number: int) -> dict[str, Any]:
        """Return the example event of a function with a new user, a new key and a valid token."""
        text = (ROOT / "infra" / "events" / f"{name}.json").read_text()
        event: dict[str, Any] = json.loads(re.sub(r"\b(u_123|p_45\d)\b", f"{name}_{number}", text))
        return event | ({"authorizationToken": f"Bearer {self._token}"} if "authorizationToken" in event else {})


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Start every function once in every round, in an order that rotates."""
    if sys.platform != "linux":
        return Section(TITLE, remarks=["Not measured: the runtime interface emulator is a program for Linux."])
    with progress.step("Building the functions as for Lambda"):
        functions = BuiltFunctions(servers, servers.nats.state.with_name("cold_start"), effort.starts)
    names, starts = functions.names, ColdStarts()
    with progress.step(f"{TITLE}: {len(names) - 1} functions · {EMPTY}, {effort.starts} rounds"):
        for number in range(effort.starts):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                starts.add(name, functions.start(name, number))
    return _section(starts, functions.layer)


def _section(starts: ColdStarts, layer: Path) -> Section:
    grant, size = starts.added_import_time("grant"), _megabytes(layer)
    largest = sorted(((_megabytes(part), part.name) for part in layer.iterdir()), reverse=True)[:6]
    parts = ", ".join(f"{name} {megabytes:.1f}" for megabytes, name in largest)
    byte_code = len(list(layer.rglob("*.pyc")))
    return Section(
        TITLE,
        findings=[
            Finding.at_most(f"grant, import time above {EMPTY}", _ms(grant), grant.median, 220, "ms", 190),
            Finding.at_most("layer, unzipped", f"{size:.1f} MB", size, 40, "MB"),
        ],
        remarks=[
            _METHOD,
            f"The layer ships byte code for {byte_code} modules." if byte_code else _WITHOUT_BYTE_CODE,
            starts.table(),
            f"Largest parts of the layer, in MB: {parts}.",
        ],
    )


def _megabytes(path: Path) -> float:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) / 1e6


def _ms(spread: Spread) -> str:
    return f"{spread.median:.0f} ms ({spread.low:.0f}-{spread.high:.0f})"
