"""What every command gets: the options that all commands share, the output, and the installation."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import sys
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import typer

from grantwire_cli.api import DEFAULT_TIMEOUT_SECONDS, Api
from grantwire_cli.checkout import Checkout, require_checkout
from grantwire_cli.errors import CommandError
from grantwire_cli.output import Output
from grantwire_cli.target import Selection, Target, resolve_target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOT_CONFIRMED = "NOT_CONFIRMED"


@dataclass(frozen=True)
class Options:
    """The options that all commands share, each given before or after the command's name."""

    as_json: bool = False
    no_color: bool = False
    selection: Selection = field(default_factory=Selection)
    timeout: float | None = None


class Session:
    """One call of a command."""

    def __init__(self, options: Options, output: Output | None = None) -> None:
        self.options = options
        self.output = output or Output(as_json=options.as_json, no_color=options.no_color)

    @cached_property
    def target(self) -> Target:
        """The installation that the options, the environment, a profile or the current folder select."""
        return resolve_target(self.options.selection, os.environ)

    @cached_property
    def api(self) -> Api:
        """The API of the installation."""
        timeout = DEFAULT_TIMEOUT_SECONDS if self.options.timeout is None else self.options.timeout
        return Api(self.target, timeout=timeout, notify=self.warn)

    @property
    def checkout(self) -> Checkout:
        """The checkout that `--checkout`, GRANTWIRE_CHECKOUT or the current folder names."""
        path: Path | None = self.options.selection.checkout or Selection.from_environment(os.environ).checkout
        return require_checkout(path)

    def warn(self, text: str) -> None:
        """Print a warning on standard error."""
        self.output.message(text, style="yellow")

    def note(self, text: str) -> None:
        """Print a remark on standard error, which a script does not need."""
        if not self.output.as_json:
            self.output.message(text, style="dim")

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before a destructive step.

        Raises CommandError if the answer is no, and BadParameter if there is no terminal to ask on and no `--yes`.
        """
        if yes:
            return
        if not sys.stdin.isatty():
            raise typer.BadParameter(f"{question} There is no terminal to ask on; --yes confirms it.")
        if not typer.confirm(question, err=True):
            raise CommandError("Nothing was changed.", code=NOT_CONFIRMED)

    def operator(self, actor: str | None, reason: str) -> dict[str, Any]:
        """Return who acts and why, which the installation records. The default actor is the account and host."""
        return {"actor": actor or default_actor(), "reason": reason}

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Close the connections at the end of the command."""
        try:
            yield
        finally:
            if "api" in self.__dict__:
                self.api.close()


def default_actor() -> str:
    """Return this account and host."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
