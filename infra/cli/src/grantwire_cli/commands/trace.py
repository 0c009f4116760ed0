"""`grantwire trace`: the whole path of a change, found by any of its ids."""

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from grantwire_cli.errors import ExitCode
from grantwire_cli.output import STYLES, shown, visible
from grantwire_cli.registry import register
from grantwire_cli.session import Session
from grantwire_cli.times import human_time, short_duration

STAGE_STYLES = {
    "dead_letter": "red",
    "sent": "green",
    "attempt": "yellow",
    "closed": "yellow",
    "operator_action": "cyan",
}
EXPLAINED = {"dead_letter"}  # the summaries of the others say it all
STATE_STYLES = {**STYLES, "DEAD_LETTER": "red", "REFUSED": "yellow", "DISCARDED": "yellow"}


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""
    register(
        app,
        "trace",
        "grantwire trace --user u_123 --sku item1",
        "grantwire trace --purchase-id p_456",
        "grantwire trace --key p_456",
        "grantwire trace --trace-id 1-695f5a08-0123456789abcdef01234567 --json",
        "grantwire trace --correlation-id c6af9ac6-7b61-11e6-9a41-93e8deadbeef",
    )(trace)


def trace(
    session: Session,
    user: Annotated[str | None, typer.Option("--user", help="The user; together with --sku.")] = None,
    sku: Annotated[str | None, typer.Option("--sku", help="The stock keeping unit; together with --user.")] = None,
    purchase_id: Annotated[str | None, typer.Option("--purchase-id", help="The purchase.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="The idempotency key of the request.")] = None,
    key_fingerprint: Annotated[
        str | None, typer.Option("--key-fingerprint", help="The key's fingerprint in logs.")
    ] = None,
    event_id: Annotated[str | None, typer.Option("--event-id", help="The event.")] = None,
    notification_id: Annotated[str | None, typer.Option("--notification-id", help="The notification.")] = None,
    trace_id: Annotated[str | None, typer.Option("--trace-id", help="The trace id, or a whole traceparent.")] = None,
    correlation_id: Annotated[
        str | None, typer.Option("--correlation-id", help="The request id in logs and in an internal error.")
    ] = None,
    details: Annotated[bool, typer.Option("--details", "-d", help="Show all that is known about each step.")] = False,
) -> int:
    """Show everything that happened to a change, in order: request, event, inbox, notification, dead letters.

    The exit code is 5 if nothing is known.
    """
    query = {
        "user_id": user,
        "stock_keeping_unit": sku,
        "purchase_id": purchase_id,
        "idempotency_key": key,
        "key_fingerprint": key_fingerprint,
        "event_id": event_id,
        "notification_id": notification_id,
        "trace_id": trace_id,
        "correlation_id": correlation_id,
    }
    given = {name for name, value in query.items() if value is not None}
    if given != {"user_id", "stock_keeping_unit"} and (len(given) != 1 or given & {"user_id", "stock_keeping_unit"}):
        raise typer.BadParameter("Give --user together with --sku, or exactly one of the other ids.")
    found = session.api.get("/v1/ops/trace", **query)
    if session.output.as_json:
        session.output.json(found)
    else:
        _print(session, found, details=details)
    return ExitCode.OK if found["timeline"] or found["changes"] else ExitCode.NEGATIVE


def _print(session: Session, found: dict[str, Any], *, details: bool) -> None:
    if not found["timeline"] and not found["changes"]:
        session.note(f"{session.target.title} knows nothing about it.")
        return
    columns = ("at", "operation", "user_id", "stock_keeping_unit", "version", "outcome", "state")
    changes = [[*(change.get(name) for name in columns[:-1]), _state(change)] for change in found["changes"]]
    session.output.table(columns, changes)
    session.output.line()
    _print_timeline(session, found["timeline"], details=details)
    for removed in found["removed"]:
        session.note(f"{removed['stage']} of {removed['event_id']}: {removed['reason']}")
    for step in found["timeline"]:
        letter = step.get("detail") or {}
        if step["stage"] == "dead_letter" and letter.get("state") == "OPEN":
            selection = f"--kind {letter['kind']} --id {letter['dead_letter_id']}"
            session.note(
                f"Repair the cause, then: grantwire dead-letters redrive {selection} --reason 'what you repaired'"
            )
    if found["truncated"]:
        session.note("There are more changes or steps than these.")


def _print_timeline(session: Session, timeline: list[dict[str, Any]], *, details: bool) -> None:
    """Print the steps with their times; below a failure, also what is known about it."""
    grid = Table.grid(padding=(0, 2))
    for _column in ("at", "offset", "stage"):
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for step in timeline:
        grid.add_row(
            Text(human_time(step["at"]), style="dim"),
            Text(f"+{short_duration(step['offset_ms'] / 1000)}", style="dim"),
            Text(step["stage"].replace("_", " "), style=STAGE_STYLES.get(step["stage"], "bold")),
            Text(visible(step["summary"])),
        )
        known = step.get("detail") or {} if details or step["stage"] in EXPLAINED else {}
        for name, value in known.items():
            if value is not None:
                grid.add_row("", "", "", Text(f"{name}: {visible(shown(name, value))}", style="dim"))
    session.output.show(grid)


def _state(change: dict[str, Any]) -> Text:
    state = visible(change.get("state"))
    return Text(state, style=STATE_STYLES.get(state, ""))
