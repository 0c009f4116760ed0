"""`grantwire read-model`: compare the read model with the system of record, and repair it."""

from typing import Any

from grantwire_cli.commands.dead_letters import Wait
from grantwire_cli.commands.parameters import Actor, Key, Reason, Yes
from grantwire_cli.errors import ExitCode
from grantwire_cli.following import finish, follow, post_with_key
from grantwire_cli.registry import new_group, register
from grantwire_cli.session import Session

app = new_group("Compare the read model with the system of record, and repair it.")

READ_MODEL = "/v1/ops/read-model"
HARMLESS = {"missing", "behind"}  # normal while events are being delivered


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


@register(app, "rebuild", "grantwire read-model rebuild --reason 'the read model was restored' --yes")
def rebuild(
    session: Session, reason: Reason, actor: Actor = None, yes: Yes = False, wait: Wait = True, key: Key = None
) -> int:
    """Repair every difference from the system of record. The workers can keep running."""
    session.confirm(f"Rebuild the read model of {session.target.title}?", yes=yes)
    return _run(session, "rebuild", session.operator(actor, reason), key, wait=wait)


def _run(session: Session, action: str, body: dict[str, Any], key: str | None, *, wait: bool) -> int:
    accepted = post_with_key(session, f"{READ_MODEL}/{action}", body, key)
    if not wait:
        session.output.record(accepted)
        return ExitCode.OK
    command = finish(session, follow(session, accepted["command_id"]))
    result = command.get("result") or {}
    found = result.get("found") or {}
    repaired = {name: result[name] for name in ("repaired", "removed", "summaries", "complete") if name in result}
    shown = {"command_id": command["command_id"], "status": command["status"], **found, **repaired}
    session.output.record(command, shown)
    wrong = sum(count for name, count in found.items() if name not in HARMLESS)
    incomplete = not result.get("complete", True)
    return ExitCode.NEGATIVE if incomplete or (action == "verify" and wrong) else ExitCode.OK
