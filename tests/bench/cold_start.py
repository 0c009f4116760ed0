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
from tests.support.secrets_manager import running_secrets_manager

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

TITLE = "Cold start"
EMPTY = "empty handler"
# What a request with a new token waits for.
WITH_SECRET = ("grant", "authorize_caller")

_SEED: LiteralString = """
INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at)
SELECT operation || '_' || n, 'item1', 'ACTIVE', 1, now()
  FROM generate_series(0, %s - 1) n, unnest(ARRAY['revoke', 'extend']) operation
"""
_METHOD = """\
The functions and the layer are built by `sam build`; only `awslambdaric` is added to their import path. A start is a
new process under the runtime interface emulator, which reports the init phase: interpreter, runtime and imports, with
the files in the page cache. A function of a route also connects to PostgreSQL in its init phase; the first request of
others includes connecting to PostgreSQL and NATS. The first request of a worker lasts until the worker is idle. On
Lambda both take longer, because a function with 512 MB of memory gets only a share of a CPU."""
_WITH_SECRET = """\
On AWS the address of the database is in a secret. The rows compare it with a URL in the environment: the function reads
the secret from a server on this machine, without TLS, and connects in the init phase, where Lambda gives it a full
CPU."""
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

    def totals(self, name: str) -> list[float]:
        """Return the milliseconds until the first response, by round."""
        return [sum(parts) for parts in zip(self.init[name], self.first_request[name], strict=True)]

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
        self._url = url

    @property
    def database_url(self) -> str:
        """The address of the database, as a secret has it."""
        return self._url

    @property
    def names(self) -> list[str]:
        """Every function, and the empty handler."""
        return list(self._folders)

    def start(
        self,
        name: str,
        number: int,
        event: Mapping[str, Any] | None = None,
        *,
        requests: int = 1,
        secret: Mapping[str, str] | None = None,
    ) -> lambda_runtime.ColdStart:
        """Start a function in round `number`, with its example event or another one.

        `secret` are the variables that replace the address of the database. Raises RuntimeError if it does not succeed.
        """
        environ = self._environ | {"AWS_LAMBDA_FUNCTION_NAME": name} | self._own_environ.get(name, {})
        environ |= {"DATABASE_URL": "", **secret} if secret else {}
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
    plain, secret = ColdStarts(), ColdStarts()
    with running_secrets_manager() as manager, progress.step(f"{TITLE}: with a secret, {effort.starts} rounds"):
        variables = manager.environ | {"DATABASE_SECRET_ARN": manager.store("database", functions.database_url)}
        for number in range(effort.starts, 2 * effort.starts):  # new keys, so that no request is a replay
            for name in WITH_SECRET:
                plain.add(name, functions.start(name, number))
                secret.add(name, functions.start(name, number + effort.starts, secret=variables))
    return _section(starts, plain, secret, functions.layer)


def _section(starts: ColdStarts, plain: ColdStarts, secret: ColdStarts, layer: Path) -> Section:
    grant, size = starts.added_import_time("grant"), _megabytes(layer)
    largest = sorted(((_megabytes(part), part.name) for part in layer.iterdir()), reverse=True)[:6]
    parts = ", ".join(f"{name} {megabytes:.1f}" for megabytes, name in largest)
    byte_code = len(list(layer.rglob("*.pyc")))
    return Section(
        TITLE,
        findings=[
            Finding.at_most(f"grant, import time above {EMPTY}", _ms(grant), grant.median, 220, "ms", 190),
            *(_secret_finding(name, plain, secret) for name in WITH_SECRET),
            Finding.at_most("layer, unzipped", f"{size:.1f} MB", size, 30, "MB"),
        ],
        remarks=[
            _METHOD,
            f"The layer ships byte code for {byte_code} modules." if byte_code else _WITHOUT_BYTE_CODE,
            starts.table(),
            _WITH_SECRET,
            _secret_table(plain, secret),
            f"Largest parts of the layer, in MB: {parts}.",
        ],
    )


def _secret_finding(name: str, plain: ColdStarts, secret: ColdStarts) -> Finding:
    added = Spread(tuple(b - a for a, b in zip(plain.totals(name), secret.totals(name), strict=True)))
    return Finding.at_most(f"{name}, cold start with a secret above one without", _ms(added), added.median, 60, "ms")


def _secret_table(plain: ColdStarts, secret: ColdStarts) -> str:
    lines = ["| cold start | init phase | first request | both |", "| --- | ---: | ---: | ---: |"]
    for name in WITH_SECRET:
        for title, starts in ((f"{name}, URL", plain), (f"{name}, secret", secret)):
            columns = (starts.init[name], starts.first_request[name], starts.totals(name))
            lines.append(f"| {title} | " + " | ".join(_ms(Spread(tuple(column))) for column in columns) + " |")
    return "\n".join(lines)


def _megabytes(path: Path) -> float:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) / 1e6


def _ms(spread: Spread) -> str:
    return f"{spread.median:.0f} ms ({spread.low:.0f}-{spread.high:.0f})"
