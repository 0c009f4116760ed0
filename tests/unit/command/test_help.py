from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from grantwire_cli.app import build
from grantwire_cli.errors import ExitCode
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.fake_api import FakeApi
    from tests.unit.command.conftest import Result

    Run = Callable[..., Result]

DOCUMENTATION = (ROOT / "docs" / "command.md").read_text()
PROGRAM = (sys.executable, "-m", "grantwire_cli")


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with its path."""
    group = group or typer.main.get_command(build())
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = dict(commands())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_has_examples_that_are_valid_command_lines(path: tuple[str, ...]) -> None:
    """T3: each example of a command parses; the shared options are there, --json among them."""
    command = ALL[path]
    examples = [line.strip() for line in command.epilog.splitlines() if "grantwire" in line]
    assert examples
    for example in examples:
        words = shlex.split(example.replace("\\[", "[").replace("\\", ""), comments=True)
        words = words[words.index("grantwire") + 1 :]
        end = next((number for number, word in enumerate(words) if re.fullmatch(r"\||&&|>.*", word)), len(words))
        position = len(path) if tuple(words[: len(path)]) == path else _skip_shared(words, path)
        context = command.make_context("grantwire", words[position:end])
        assert context.params.get("as_json") is not None
    assert command.help


def _skip_shared(words: list[str], path: tuple[str, ...]) -> int:
    """Return the position behind the command's name, if options come before it."""
    start = words.index(path[0])
    assert tuple(words[start : start + len(path)]) == path
    return start + len(path)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_is_documented_with_an_example(path: tuple[str, ...]) -> None:
    """T3: docs/command.md has a command line for each command."""
    assert re.search(rf"grantwire (?:--\S+ \S+ )?{re.escape(' '.join(path))}\b", DOCUMENTATION)


def test_exit_codes_are_documented() -> None:
    """T3: the help and docs/command.md list every exit code."""
    epilog = typer.main.get_command(build()).epilog or ""
    for code in ExitCode:
        assert re.search(rf"^\| `{code.value}` \|", DOCUMENTATION, re.MULTILINE)
        if code is not ExitCode.BROKEN_PIPE:
            assert re.search(rf"^  {code.value}  ", epilog, re.MULTILINE)


def test_help_without_arguments_and_wrong_usage(run: Run) -> None:
    """T3: an unknown command or option, and a missing argument, is exit code 2."""
    assert "Exit codes" in run("--help").out
    for arguments in (["nonsense"], ["status", "--nonsense"], ["entitlements", "grant"], ["logs", "--lines", "x"]):
        assert run(*arguments).code == 2


def test_closed_pipe_ends_the_command_quietly(grantwire: Run, api: FakeApi, home: Path) -> None:
    """T3: `grantwire … | head` prints no traceback."""
    del grantwire, home
    api.entitlements = {("u_1", f"item{number:05}"): {"status": "ACTIVE", "version": 1} for number in range(3000)}
    reading, writing = os.pipe()
    with subprocess.Popen(
        [*PROGRAM, "entitlements", "list", "u_1"], stdout=writing, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(writing)
        os.read(reading, 100)
        os.close(reading)
        _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    assert process.returncode == ExitCode.BROKEN_PIPE


def test_completion_of_commands(home: Path) -> None:
    """T3: the shell completes nouns and verbs."""
    variables = {
        **os.environ,
        "_GRANTWIRE_COMPLETE": "complete_bash",
        "COMP_WORDS": "grantwire dead-",
        "COMP_CWORD": "1",
    }
    program = [sys.executable, "-c", "from grantwire_cli.__main__ import main; main()"]
    result = subprocess.run(program, env=variables, capture_output=True, text=True, check=False, cwd=home)
    assert "dead-letters" in result.stdout


def test_colours_are_for_terminals_only(grantwire: Run, api: FakeApi) -> None:
    """T3: no escape sequence in a pipe."""
    api.entitlements[("u_1", "i")] = {"status": "ACTIVE", "version": 1}
    result = grantwire("entitlements", "list", "u_1")
    assert "\x1b" not in result.out + result.err
