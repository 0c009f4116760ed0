"""`grantwire read-model`: compare the read model with the system of record, and repair it."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from grantwire_cli.commands.dead_letters import Wait
from grantwire_cli.commands.parameters import Actor, Key, Reason, Yes
from grantwire_cli.errors import ExitCode
from grantwire_cli.following import finish, follow, post_with_key
from grantwire_cli.registry import new_group, register
from grantwire_cli.session import Session

app = new_group("Compare the read model with the system of record, and repair it.")

READ_MODEL = "/v1/ops/read-model"
HARMLESS = {"missing", "behind"}  # normal while events are being delivered


class Source(StrEnum):
    """What the read model is rebuilt from."""

    record = "record"
    stream = "stream"


@register(
    app,
    "verify",
    "grantwire read-model verify --reason 'after the restore'",
    "grantwire read-model verify --reason nightly --json | jq .result.found",
)
def verify(session: Session, reason: Reason, actor: Actor = None, wait: Wait = True, key: Key = None) -> int:
    """Compare the read model with the system of record, and change nothing.

    The exit code is 5 if rows are wrong. Rows that wait for an event are not wrong.
    """
    return _run(session, "verify", session.operator(actor, reason), key, wait=wait)


@register(
    app,
    "rebuild",
    "grantwire read-model rebuild --reason 'the read model was restored' --yes",
    "grantwire read-model rebuild --source stream --from-sequence 4000001 --reason 'the bridge skipped events'",
)
def rebuild(
    session: Session,
    reason: Reason,
    source: Annotated[
        Source, typer.Option("--source", help="Compare with the system of record, or read the stream again.")
    ] = Source.record,
    from_sequence: Annotated[
        int | None, typer.Option("--from-sequence", min=1, help="The first message of the stream.")
    ] = None,
    actor: Actor = None,
    yes: Yes = False,
    wait: Wait = True,
    key: Key = None,
) -> int:
    """Repair every difference from the system of record. The workers can keep running.

    From the stream, only rows that are missing or behind are repaired.
    """
    if from_sequence is not None and source is Source.record:
        raise typer.BadParameter("--from-sequence needs --source stream.")
    session.confirm(f"Rebuild the read model of {session.target.title}?", yes=yes)
    body = session.operator(actor, reason) | ({} if source is Source.record else {"source": source.value})
    body |= {} if from_sequence is None else {"from_sequence": from_sequence}
    return _run(session, "rebuild", body, key, wait=wait)


def _run(session: Session, action: str, body: dict[str, Any], key: str | None, *, wait: bool) -> int:
    accepted = post_with_key(session, f"{READ_MODEL}/{action}", body, key)
    if not wait:
        session.output.record(accepted)
        return ExitCode.OK
    command = finish(session, follow(session, accepted["command_id"]))
    result = command.get("result") or {}
    found = result.get("found") or {}
    counts = {name: value for name, value in result.items() if name not in {"found", "source", "dry_run"}}
    shown = {"command_id": command["command_id"], "status": command["status"], **found, **counts}
    session.output.record(command, shown)
    wrong = sum(count for name, count in found.items() if name not in HARMLESS)
    incomplete = not result.get("complete", True)
    return ExitCode.NEGATIVE if incomplete or (action == "verify" and wrong) else ExitCode.OK
