"""T9: a pipe gets the view of a terminal, and errors are on standard error with their exit codes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_cli.errors import ExitCode
from tests.support.command_program import PROGRAM, environment, in_pipe, on_terminal, without_escapes
from tests.support.fake_api import Fault, Reply, error
from tests.support.ops_examples import (
    ACCEPTED,
    AT,
    CLIENT,
    COMMAND_ID,
    DETAIL,
    GROUPS,
    LETTER,
    TRACE,
    command,
    problem,
    status,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.fake_api import FakeApi
    from tests.unit.command.conftest import Result

    Run = Callable[..., Result]

RAW_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")
LONG = "the receiver of the shop refused the connection, and then it refused it again and again, " * 4
PREVIEW = {"selected": 2, "would_change": 2, "skipped": {"no copy": 1}, "ids": ["a", "b"], "more": False}
OWN_CLIENT = CLIENT | {"state": "ACTIVE", "token_expires_at": AT, "expires_at": AT}
ENTITLEMENT = {"status": "ACTIVE", "version": 1, "expires_at": AT}
CHECK = {"allowed": True, "reason": {"message": f"active until {AT}"}, "checked_at": AT, "cache_until": AT}
EVENT = {"event_type": "EntitlementGranted", "user_id": "u_1", "occurred_at": AT, "stock_keeping_unit": "i"}
ATTENTION = status(state="ATTENTION", problems=[problem("DEAD_LETTERS", LONG, since=AT)], dead_letters=GROUPS)
USER, LETTERS, CLIENTS = "/v1/users/u_1/entitlements", "/v1/ops/dead-letters", "/v1/ops/clients"
ROUTES: dict[tuple[str, str], Any] = {
    ("GET", "/v1/ops/status"): ATTENTION,
    ("GET", f"{USER}/item1"): ENTITLEMENT | CHECK,
    ("GET", f"{USER}/item1/history"): {"history": [{"version": 1, "occurred_at": AT, "reason": LONG}]},
    ("GET", "/v1/changes"): {"changes": [EVENT] * 3, "next_after": "c1", "has_more": False},
    ("GET", "/v1/snapshot"): {"entitlements": [EVENT], "changes_after": "c1", "next_after": None},
    ("GET", f"{LETTERS}/groups"): GROUPS,
    ("GET", LETTERS): {"dead_letters": [LETTER | {"cause": LONG, "since": "2026-01-08T08:10:00+01:00"}]},
    ("GET", f"{LETTERS}/nats/x"): DETAIL | {"message": DETAIL["message"] | {"text": "{\n\t1\n}", "base64": "e30="}},
    ("POST", f"{LETTERS}/redrive"): PREVIEW,
    ("GET", "/v1/ops/trace"): TRACE,
    ("GET", "/v1/ops/commands"): {"commands": [command("DONE")]},
    ("GET", f"/v1/ops/commands/{COMMAND_ID}"): command("DONE", result={"found": {"wrong": 1}}),
    ("POST", "/v1/ops/read-model/verify"): ACCEPTED,
    ("GET", CLIENTS): {"clients": [CLIENT | {"expires_at": AT}]},
    ("POST", CLIENTS): {"client_id": "c", "token": "gw_live_x", "expires_at": AT},
    ("GET", "/v1/me"): OWN_CLIENT,
}
# One command line or more of each family, its exit code, and what its view has on one line.
COMMANDS = [
    ("status", 5, f"  ! {LONG}"),
    ("doctor", 1, f"status        {LONG}"),
    ("entitlements list u_1", 0, "item1                ACTIVE         1   2026-01-08 07:10:00Z"),
    ("entitlements check u_1 item1", 0, "reason       active until 2026-01-08 07:10:00Z"),
    ("entitlements history u_1 item1", 0, LONG),
    ("events tail --from-beginning --no-follow", 0, "2026-01-08 07:10:00Z Granted  u_1  i"),
    ("dead-letters groups", 0, "2026-01-08 07:10:00Z   receiver responded with status 500"),
    ("dead-letters list", 0, f"2026-01-08 07:10:00Z   u_123     item1                {LONG}"),
    ("dead-letters show nats x", 0, "      1"),
    ("dead-letters redrive --kind nats --all --reason r --dry-run", 0, "skipped.no copy    1"),
    ("trace --purchase-id p_456 --details", 0, "2026-01-08 07:10:00Z  +62 ms  sent    receiver responded with 200"),
    ("commands list", 0, "DONE     2 of 2   2026-01-08 07:10:00Z   jane    fixed"),
    ("commands show " + COMMAND_ID, 0, "progress.done       2"),
    ("read-model verify --reason r", 5, "wrong       1"),
    ("clients list", 0, "never          2026-01-08 07:10:00Z"),
    ("clients create --name shop --scope a --reason r", 0, "expires_at  2026-01-08 07:10:00Z"),
    ("whoami", 0, "token_expires_at  2026-01-08 07:10:00Z"),
    ("cost --rate 10", 0, "Metrics                         12.30"),
    ("export {home}/out.csv", 0, "entitlements   1"),
    ("import {home}/in.jsonl --yes --results {home}/results", 0, "applied           1"),
]
LOCAL = {"cost", "doctor", "status"}  # send nothing, or report an error as their result


@pytest.fixture
def installation(api: FakeApi) -> FakeApi:
    """An installation that has something to show for every command."""
    api.entitlements[("u_1", "item1")] = ENTITLEMENT
    for (method, path), body in ROUTES.items():
        api.respond(method, path, body)
    return api


def prepare(line: str, home: Path, case: str) -> list[str]:
    """Return the arguments of a command line, with the files of a case of its own."""
    folder = home / case
    folder.mkdir()
    change = f'"user_id": "u_{case}", "stock_keeping_unit": "i", "reason": "r", "purchase_id": "{case}"'
    (folder / "in.jsonl").write_text(f'{{"operation": "grant", {change}}}\n')
    return [word.format(home=folder) for word in line.split()]


def comparable(text: str, home: Path) -> str:
    """Return a view without what differs from run to run: folders and the speed of an import."""
    text = re.sub(rf"{re.escape(str(home))}/\w+/", "", text)
    return re.sub(r"lines_per_second .*", "lines_per_second", text)


@pytest.mark.parametrize(("line", "code", "expected"), COMMANDS)
def test_pipe_gets_the_view_of_a_terminal(
    installation: FakeApi, home: Path, line: str, code: int, expected: str
) -> None:
    """T9: without colours, with one line for each row, whatever COLUMNS says, and with one format of times."""
    wide = {"COLUMNS": "1000"}
    shown = on_terminal(installation, *prepare(line, home, "terminal"), messages=False, **wide)
    exit_code, out, _ = in_pipe(installation, *prepare(line, home, "pipe"), COLUMNS="40", LC_ALL="C")
    assert (exit_code, shown[0]) == (code, code)
    assert comparable(out, home) == comparable(without_escapes(shown[1]), home)
    assert any(expected.rstrip() in row for row in out.splitlines()), out
    assert not {"\x1b", "\t", "\r"} & set(out)
    assert not RAW_TIME.search(out)


@pytest.mark.parametrize("line", [line for line, *_ in COMMANDS if line.split()[0] not in LOCAL])
@pytest.mark.parametrize(("reply", "code"), [(error(403, "FORBIDDEN"), 4), (error(503, "UNAVAILABLE"), 3)])
def test_error_is_on_standard_error(
    grantwire: Run, installation: FakeApi, home: Path, line: str, reply: Reply, code: int
) -> None:
    """T9: standard output stays empty, so that no program takes an error for a result."""
    arguments = [*prepare(line, home, "pipe"), "--timeout", "0"]
    if arguments[0] == "import":
        arguments += ["--patience", "0"]
    for options in ([], ["--json"]):
        installation.faults = [Fault(reply)]
        result = grantwire(*arguments, *options)
        assert (result.code, result.out) == (code, "")
        assert result.error["code"] == reply.body["code"] if options else "Error: " in result.err


@pytest.mark.parametrize("line", ["status", "entitlements list u_1", "export"])
def test_result_that_cannot_be_written_is_an_error(installation: FakeApi, line: str) -> None:
    """T9: a full disk is exit code 1 and no traceback."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no device that is always full")
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*PROGRAM, *line.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(installation),
            check=False,
        )
    assert result.returncode == 1
    assert result.stderr.startswith("Error: Could not read or write: ")
    assert len(result.stderr.splitlines()) == 1


def test_watch_in_a_pipe_is_for_people_too(installation: FakeApi) -> None:
    """T9: each refresh has its time; with --json it is a line."""
    people, programs = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ\n● ", r'\{"at": "[-0-9]+T[.:0-9]+Z", '
    for options, begin in (([], people), (["--json"], programs)):
        with subprocess.Popen(
            [*PROGRAM, "status", "--watch", "--interval", "0.5", *options],
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=environment(installation),
        ) as process:
            assert process.stdout
            text = "".join(process.stdout.readline() for _ in range(2))
            process.stdout.close()
        assert re.match(begin, text), text
        assert process.returncode == ExitCode.BROKEN_PIPE
