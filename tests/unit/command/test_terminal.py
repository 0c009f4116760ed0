"""T3, K7: the command as a program of its own: on a terminal, interrupted, and killed."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from grantwire_cli.errors import ExitCode
from tests.support.command_program import PROGRAM, environment, on_terminal
from tests.support.ops_examples import AT, COMMAND_ID, DETAIL, TRACE, problem, status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.fake_api import Call, FakeApi, Reply

LINES = 3000
HELD_AFTER = 500  # lines
REVOKE = ("entitlements", "revoke", "u_1", "item1", "--reason", "refund")


def test_terminal_gets_tables_and_colours(api: FakeApi) -> None:
    """T3: NO_COLOR turns the colours off."""
    api.entitlements[("u_1", "item1")] = {"status": "ACTIVE", "version": 1}
    code, text = on_terminal(api, "entitlements", "list", "u_1")
    assert code == 0
    assert "\x1b[32mACTIVE" in text
    assert "stock keeping unit" in text
    _, plain = on_terminal(api, "entitlements", "list", "u_1", NO_COLOR="1")
    assert "\x1b[32m" not in plain
    assert "ACTIVE" in plain


@pytest.mark.parametrize(("typed", "code", "calls"), [("n\n", 1, 0), ("\n", 1, 0), ("y\n", 0, 1)])
def test_destructive_command_asks_on_a_terminal(api: FakeApi, typed: str, code: int, calls: int) -> None:
    """T3: everything but yes means no."""
    api.entitlements[("u_1", "item1")] = {"status": "ACTIVE", "version": 1}
    exit_code, text = on_terminal(api, *REVOKE, typed=typed)
    assert (exit_code, len(api.calls)) == (code, calls)
    assert "Revoke item1 of u_1 on" in text
    assert ("Nothing was changed." in text) == (calls == 0)


def test_status_on_a_terminal(api: FakeApi) -> None:
    """T3: problems come first, each with what to try."""
    found = [problem("DEAD_LETTERS", "2 open dead letters")]
    api.respond("GET", "/v1/ops/status", status(state="ATTENTION", problems=found))
    code, text = on_terminal(api, "status", "--no-color")
    assert code == 5
    positions = [text.index(part) for part in ("ATTENTION", "2 open dead letters", "to do about DEAD_LETTERS")]
    assert positions == sorted(positions)
    assert "relay_outbox" in text


def test_status_says_what_arrived_and_what_still_works(api: FakeApi) -> None:
    """T3, W3, W4: up to when all has arrived, and what is away, since when, why, what works, and what to try.

    The advice is that of the API, once for each kind of problem.
    """
    settled = status()["settled"] | {"age_seconds": 425.0, "held_back_by": "notifications"}
    problems = [
        problem("NATS_UNAVAILABLE", "the bridge cannot use NATS", since=AT, last_error="no connection"),
        problem("WORKER_LATE", "relay_outbox has never reported a run"),
        problem("WORKER_LATE", "record_advisories has never reported a run"),
    ]
    waiting = [{"cause": "status 500", "count": 5004, "oldest_at": AT, "next_attempt_at": AT}]
    api.respond(
        "GET",
        "/v1/ops/status",
        status(
            state="ATTENTION",
            problems=problems,
            settled=settled,
            notifications=status()["notifications"] | {"waiting": waiting},
        ),
    )
    code, text = on_terminal(api, "status", "--no-color")
    parts = (
        *("Every change up to 2026-01-08 07:10:00Z has arrived", "7 min 5 s: its notification is not sent"),
        *("cannot use NATS", "since", "2026-01-08 07:10:00Z", "last error", "no connection"),
        *("still works with NATS_UNAVAILABLE", "to do about NATS_UNAVAILABLE", "status 500"),
    )
    position = 0
    for part in parts:
        position = text.index(part, position)
    assert code == 5
    assert text.count("to do about WORKER_LATE") == 1


def test_message_that_cannot_be_decoded_is_shown_as_text(api: FakeApi) -> None:
    """T3: on its lines, without the bytes; nothing in it is sent to the terminal, also not with --json."""
    poison = '{\n\t"user": "\\u001b[31m"\n}\u009b2J\u202e'
    message = DETAIL["message"] | {"decoded": None, "base64": "e30=", "text": poison, "problem": "it is JSON"}
    api.respond("GET", f"/v1/ops/dead-letters/nats/{COMMAND_ID}", DETAIL | {"message": message})
    show = ("dead-letters", "show", "nats", COMMAND_ID)
    code, text = on_terminal(api, *show, "--no-color")
    assert code == 0
    assert '  {\r\n      "user": "\\u001b[31m"\r\n  }\\x9b2J\\u202e\r\n' in text
    assert "it is JSON" in text
    assert "e30=" not in text
    assert "--json" in text
    code, text = on_terminal(api, *show, "--json")
    assert json.loads(text)["message"] == message
    assert not {"\x1b", "\u009b", "\u202e"} & set(text)


def test_trace_on_a_narrow_terminal_breaks_lines_between_words(api: FakeApi) -> None:
    """T3: the summary of a step stays in its column."""
    summary = "no response from the receiver: connection refused by the server of the shop"
    step = TRACE["timeline"][0] | {"summary": summary}
    change = TRACE["changes"][0] | {"state": "DEAD_LETTER", "user_id": "u_" + "1" * 40}
    api.respond("GET", "/v1/ops/trace", TRACE | {"timeline": [step], "changes": [change]})
    code, text = on_terminal(api, "trace", "--purchase-id", "p", "--no-color", COLUMNS="80")
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    (first,) = [number for number, line in enumerate(lines) if "no response" in line]
    column = lines[first].index("no response")
    block = itertools.takewhile(lambda line: not line[:column].strip() and line.strip(), lines[first + 1 :])
    assert (code, " ".join([lines[first][column:], *(line.strip() for line in block)])) == (0, summary)
    assert len(lines[first]) <= 80
    assert "DEAD_LETTER" in text


class HeldApi:
    """An installation that executes some batches and then keeps their responses back, until `release`."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self._released = threading.Event()
        self.release = self._released.set
        self._serve = api.execute_batch
        api.routes[("POST", "/v1/entitlements/batches")] = self._batch

    def _batch(self, call: Call) -> Reply:
        reply = self._serve(call.body)
        if len(self.api.applied) > HELD_AFTER:
            self._released.wait(60)
        return reply


@pytest.fixture
def held_api(api: FakeApi) -> Iterator[HeldApi]:
    """An installation that keeps responses back."""
    held = HeldApi(api)
    yield held
    held.release()


@pytest.fixture
def large_file(home: Path) -> Path:
    """A file of many grants."""
    lines = [
        f'{{"operation": "grant", "user_id": "u_{n}", "stock_keeping_unit": "i", "reason": "r"' for n in range(LINES)
    ]
    path = home / "large.jsonl"
    path.write_text("".join(f'{line}, "purchase_id": "p_{number}"}}\n' for number, line in enumerate(lines)))
    return path


def start_import(api: FakeApi, file: Path) -> subprocess.Popen[str]:
    """Start an import, and return when some of its lines have taken effect."""
    # A program inherits ignored signals, and a shell starts `make test &` with SIGINT ignored.
    inherited = signal.signal(signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        [*PROGRAM, "import", str(file), "--yes"], env=environment(api), stderr=subprocess.PIPE, text=True
    )
    signal.signal(signal.SIGINT, inherited)
    wait_until(lambda: len(api.applied) > HELD_AFTER or process.poll() is not None)
    assert process.poll() is None
    return process


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true; the timeout of the test ends it."""
    while not condition():
        threading.Event().wait(0.005)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGKILL, -signal.SIGKILL)])
def test_interrupted_or_killed_import_continues(held_api: HeldApi, large_file: Path, number: int, code: int) -> None:
    """K7: each line takes effect once, and the result file of the repeated command is complete."""
    api = held_api.api
    with start_import(api, large_file) as process:
        process.send_signal(number)
        held_api.release()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in errors
    results = large_file.with_name("large.jsonl.results.jsonl")
    finished = len(results.read_text().splitlines())
    assert len(api.applied) < LINES
    again = subprocess.run(
        [*PROGRAM, "import", str(large_file), "--yes", "--json"],
        env=environment(api),
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    counts = json.loads(again.stdout)
    assert counts["applied"] + counts["replayed"] == LINES
    assert [json.loads(line)["line"] for line in results.read_text().splitlines()] == list(range(1, LINES + 1))
    assert len(api.applied) == len(set(api.applied)) == LINES
    assert finished < LINES
