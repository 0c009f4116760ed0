"""Long actions of the operations API: started with a key, followed by id until they end."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from grantwire_cli.api import path_of
from grantwire_cli.errors import CommandError, UnavailableError
from grantwire_cli.wording import counts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_cli.session import Session

COMMAND = "/v1/ops/commands/{command_id}"
POLL_SECONDS = 1.0
ENDED = {"DONE", "FAILED"}


def preview(session: Session, path: str, body: dict[str, Any]) -> Any:
    """POST a dry run, and return its body. The API requires a key, which has no use for a person."""
    return session.api.post(path, {**body, "dry_run": True}, key=str(uuid.uuid4())).body


def post_with_key(session: Session, path: str, body: dict[str, Any], key: str | None = None) -> Any:
    """POST a change of the operations API with a key, and return its body."""
    chosen = key or str(uuid.uuid4())
    title = path.removeprefix("/v1/ops/").replace("/", " ")
    session.note(f"{title} on {session.target.title}, Idempotency-Key {chosen}")
    try:
        return session.api.post(path, body, key=chosen).body
    except UnavailableError as error:
        hint = f"It may or may not have been accepted. Repeat the command with --key {chosen}."
        raise UnavailableError(str(error), hint=hint, code=error.code) from error


def follow(
    session: Session,
    command_id: str,
    *,
    timeout: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Wait until a command has ended, with a progress bar on a terminal, and return it.

    Raises UnavailableError if it has not ended within `timeout` seconds; the command itself continues.
    """
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    deadline = None if timeout is None else clock() + timeout
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[counts]}"))
    hidden = session.output.as_json or not session.output.messages.is_terminal
    with Progress(
        *columns, TimeElapsedColumn(), console=session.output.messages, transient=True, disable=hidden
    ) as bar:
        task = bar.add_task("waiting", total=None, counts="")
        try:
            while True:
                command: dict[str, Any] = session.api.get(path_of(COMMAND, command_id=command_id))
                progress = command.get("progress") or {}
                bar.update(
                    task,
                    description=f"{command['kind']} {command['status']}",
                    completed=progress.get("done") or 0,
                    total=progress.get("selected") or None,
                    counts=f"{progress.get('done') or 0} done",
                )
                if command["status"] in ENDED:
                    return command
                if deadline is not None and clock() >= deadline:
                    hint = f"It continues. Follow it with `grantwire commands wait {command_id}`."
                    raise UnavailableError(
                        f"Command {command_id} is still {command['status']}.", hint=hint, code="RUNNING"
                    )
                sleep(POLL_SECONDS if deadline is None else min(POLL_SECONDS, max(0.0, deadline - clock())))
        except KeyboardInterrupt:
            session.note(f"The command continues. Follow it with `grantwire commands wait {command_id}`.")
            raise


def finish(session: Session, command: dict[str, Any]) -> dict[str, Any]:
    """Return the result of an ended command.

    Raises CommandError if it failed.
    """
    if command["status"] == "FAILED":
        hint = f"See `grantwire commands show {command['command_id']}`; repeat the command when the cause is repaired."
        raise CommandError(f"{command['kind']} failed: {command.get('error')}", hint=hint, code="COMMAND_FAILED")
    if not session.output.as_json:
        skipped = sum(((command.get("progress") or {}).get("skipped") or {}).values())
        if skipped:
            session.warn(f"{skipped} skipped: {counts_of(command['progress']['skipped'])}")
    return command
