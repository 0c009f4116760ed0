"""Cold starts: every function as it is built, under Lambda's own runtime, against a handler that does nothing."""

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
    from pathlib import Path

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

TITLE = "Cold start"
EMPTY = "empty handler"

_SEED: LiteralString = """
INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at)
SELECT 'revoke_' || n, 'item1', 'ACTIVE', 1, now() FROM generate_series(0, %s - 1) n
"""
_HOW = """\
Functions and layer are what `sam build` makes, and nothing else but `awslambdaric` is on their path. A start is a new
process under the runtime interface emulator, which reports its init phase: interpreter, runtime and imports, with the
files in the page cache. The first request includes the connections to PostgreSQL and NATS on this machine; a worker's
lasts until it finds nothing to do. On Lambda both take longer by the share of a CPU that 512 MB of memory buy."""
_WITHOUT_BYTE_CODE = """\
The layer ships no byte code, and Lambda mounts it read-only: every start compiles what it imports, and so do these."""


@dataclass(frozen=True, slots=True)
class Starts:
    """Milliseconds of each contender, round by round: until it was ready, and its first request."""

    ready: dict[str, list[float]] = field(default_factory=dict)
    first: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, start: lambda_runtime.Start) -> None:
        """Keep one."""
        self.ready.setdefault(name, []).append(start.ready)
        self.first.setdefault(name, []).append(start.first)

    def above_empty(self, name: str) -> Spread:
        """What a function's imports add."""
        return Spread(tuple(one - empty for one, empty in zip(self.ready[name], self.ready[EMPTY], strict=True)))

    def table(self) -> str:
        """All of them."""
        lines = ["| function | import above the empty handler's | first request |", "| --- | ---: | ---: |"]
        for name in sorted(self.ready.keys() - {EMPTY}):
            first = Spread(tuple(self.first[name]))
            lines.append(f"| {name} | {_ms(self.above_empty(name))} | {_ms(first)} |")
        ready, first = Spread(tuple(self.ready[EMPTY])), Spread(tuple(self.first[EMPTY]))
        return "\n".join([*lines, f"| *the {EMPTY} itself* | *{_ms(ready)}* | *{_ms(first)}* |"])


class Functions:
    """The built functions, with the servers that they need."""

    def __init__(self, servers: Servers, folder: Path, rounds: int) -> None:
        resources = load_template()["Resources"].items()
        functions = {name: one["Properties"] for name, one in resources if one["Type"] == "AWS::Serverless::Function"}
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
        own = {"NOTIFICATION_INBOX_ENABLED": "true", "TOKEN_ENVIRONMENT": TOKEN_ENVIRONMENT}
        self._environ = servers.environ(url) | own
        self._owner = {"DATABASE_URL": servers.databases.url_for_owner(url)}
        self._token = development_token(url, folder / "token")

    @property
    def names(self) -> list[str]:
        """All contenders."""
        return list(self._folders)

    def start(self, name: str, number: int) -> lambda_runtime.Start:
        """Start one of them for the so-many-th time; what it answers must be good."""
        environ = (
            self._environ | {"AWS_LAMBDA_FUNCTION_NAME": name} | (self._owner if name == "migrate_database" else {})
        )
        event = {} if name == EMPTY else self._event(name, number)
        start = lambda_runtime.start(self._folders[name], [self.layer, self._runtime], environ, event)
        answer = start.answer
        if "errorMessage" in answer or answer.get("statusCode", 200) != 200 or '"Deny"' in json.dumps(answer):
            raise RuntimeError(f"{name} answers {answer}")
        return start

    def _event(self, name: str, number: int) -> dict[str, Any]:
        """The repository's event for a function, with a user and a key of its own, and a token that is valid."""
        text = (ROOT / "infra" / "events" / f"{name}.json").read_text()
        event: dict[str, Any] = json.loads(re.sub(r"\b(u_123|p_45\d)\b", f"{name}_{number}", text))
        return event | ({"authorizationToken": f"Bearer {self._token}"} if "authorizationToken" in event else {})


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Start every function once in every round, in an order that turns."""
    if sys.platform != "linux":
        return Section(TITLE, remarks=["Not measured: the runtime interface emulator is a program for Linux."])
    with progress.step("Building the functions as for Lambda"):
        functions = Functions(servers, servers.nats.state.with_name("cold_start"), effort.starts)
    names, starts = functions.names, Starts()
    with progress.step(f"{TITLE}: {len(names) - 1} functions · {EMPTY}, {effort.starts} rounds"):
        for number in range(effort.starts):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                starts.add(name, functions.start(name, number))
    return _section(starts, functions.layer)


def _section(starts: Starts, layer: Path) -> Section:
    grant, size = starts.above_empty("grant"), _megabytes(layer)
    largest = sorted(((_megabytes(part), part.name) for part in layer.iterdir()), reverse=True)[:6]
    parts = ", ".join(f"{name} {megabytes:.1f}" for megabytes, name in largest)
    byte_code = len(list(layer.rglob("*.pyc")))
    return Section(
        TITLE,
        findings=[
            Finding.at_most("grant's import above the empty handler's", _ms(grant), grant.median, 220, "ms", 190),
            Finding.at_most("the layer, unzipped", f"{size:.1f} MB", size, 40, "MB"),
        ],
        remarks=[
            _HOW,
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
