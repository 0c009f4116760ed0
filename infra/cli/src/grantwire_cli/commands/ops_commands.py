"""`grantwire commands`: long actions of the operations API."""

import itertools
from typing import Annotated, Any

import typer

from grantwire_cli.api import path_of
from grantwire_cli.commands.parameters import Limit
from grantwire_cli.following import COMMAND, finish, follow
from grantwire_cli.registry import new_group, register
from grantwire_cli.session import Session

app = new_group("List, show and follow long actions, such as a redrive or a rebuild.")

PAGE_SIZE = 200
CommandId = Annotated[str, typer.Argument(metavar="ID", help="The command's id.", show_default=False)]
Status = Annotated[
    str | None, typer.Option("--status", metavar="STATUS", help="PENDING, RUNNING, DONE or FAILED.", show_default=False)
]


@register(app, "list", "grantwire commands list", "grantwire commands list --status FAILED --json")
def list_(session: Session, status: Status = None, limit: Limit = 50) -> None:
    """List commands, newest first."""
    found = session.api.pages(
        "/v1/ops/commands",
        "commands",
        cursor="cursor",
        next_cursor="next_cursor",
        status=status,
        limit=min(limit or PAGE_SIZE, PAGE_SIZE),
    )
    commands = list(itertools.islice(found, limit))
    if session.output.as_json:
        session.output.json({"commands": commands})
        return
    columns = ("command_id", "kind", "status", "done", "created_at", "actor", "reason")
    session.output.table(columns, [[_value(item, column) for column in columns] for item in commands])


@register(app, "show", "grantwire commands show 019b9c5d-3f40-7abc-8def-0123456789ab")
def show(session: Session, command_id: CommandId) -> None:
    """Show one command: its arguments, progress, result or error."""
    session.output.record(session.api.get(path_of(COMMAND, command_id=command_id)))


@register(
    app,
    "wait",
    "grantwire commands wait 019b9c5d-3f40-7abc-8def-0123456789ab",
    "grantwire commands wait 019b9c5d-3f40-7abc-8def-0123456789ab --for 600",
)
def wait(
    session: Session,
    command_id: CommandId,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0, metavar="SECONDS", help="Give up after this time.")
    ] = None,
) -> None:
    """Follow a command until it has ended. The exit code is 1 if it failed, and 3 if it has not ended in time."""
    session.output.record(finish(session, follow(session, command_id, timeout=seconds)))


def _value(item: dict[str, Any], column: str) -> object:
    if column == "done":
        progress = item.get("progress") or {}
        return f"{progress.get('done') or 0} of {progress.get('selected')}" if progress.get("selected") else ""
    return item.get(column)
