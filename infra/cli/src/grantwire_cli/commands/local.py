"""`grantwire up`, `down`, `logs`, `demo`: the local stack of a checkout, by the code of the make targets."""

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from grantwire_cli.registry import register
from grantwire_cli.session import Session

PUBLIC = ("stack", "api_url", "emulator_url", "pids")  # the other addresses contain passwords


class StackKind(StrEnum):
    """The kinds of local stacks."""

    embedded = "embedded"
    localstack = "localstack"


def add_to(app: typer.Typer) -> None:
    """Add the commands to the application."""
    register(app, "up", "grantwire up", "grantwire up --stack localstack", "grantwire up --checkout ~/src/grantwire")(
        up
    )
    register(app, "down", "grantwire down", "grantwire down --checkout ~/src/grantwire")(down)
    register(app, "logs", "grantwire logs --lines 50", "grantwire logs --follow | grep ERROR")(logs)
    register(app, "demo", "grantwire demo")(demo)


def up(
    session: Session,
    stack: Annotated[StackKind, typer.Option("--stack", help="The kind of stack.")] = StackKind.embedded,
    webhook: Annotated[str, typer.Option("--webhook", help="Send notifications to this URL; off: to the log.")] = "",
) -> int:
    """Install, start and deploy the local stack of a checkout, and wait until it is healthy."""
    checkout = session.checkout
    arguments = ["up", *([stack.value] if stack is not StackKind.embedded else [])]
    arguments += ["--webhook", webhook] if webhook else []
    if not session.output.as_json:
        return checkout.run(*arguments)
    code = checkout.run(*arguments, stdout=sys.stderr)
    description: dict[str, Any] = checkout.description() or {}
    if code == 0:
        public = {name: description[name] for name in PUBLIC if name in description}
        session.output.json({"checkout": str(checkout.folder), **public})
    return code


def down(session: Session) -> int:
    """Stop the local stack of a checkout, and keep its data."""
    checkout = session.checkout
    if not session.output.as_json:
        return checkout.run("down")
    code = checkout.run("down", stdout=sys.stderr)
    session.output.json({"checkout": str(checkout.folder), "stopped": code == 0})
    return code


def logs(
    session: Session,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines of each log.")] = 10,
) -> int:
    """Show the end of each log of the local stack, and of its functions."""
    arguments = ["logs", "--lines", str(lines), *(["--follow"] if follow else [])]
    if not session.output.as_json:
        return session.checkout.run(*arguments)
    source = ""
    for line in session.checkout.lines(*arguments):
        if line.startswith("== "):
            source = line[3:]
        else:
            session.output.json_line({"source": source, "line": line})
    return 0


def demo(session: Session) -> int:
    """Send example requests to the local stack, and show the path and timing of their events."""
    if not session.output.as_json:
        return session.checkout.run("demo")
    session.output.json({"output": list(session.checkout.lines("demo"))})
    return 0
