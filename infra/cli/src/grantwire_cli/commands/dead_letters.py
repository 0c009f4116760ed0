"""`grantwire dead-letters`: list, groups, show, redrive, discard."""

import itertools
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from grantwire_cli.api import path_of
from grantwire_cli.commands.parameters import Actor, DryRun, Key, Limit, Reason, Yes
from grantwire_cli.errors import ExitCode
from grantwire_cli.following import finish, follow, post_with_key, preview
from grantwire_cli.registry import new_group, register
from grantwire_cli.session import Session
from grantwire_cli.wording import count_of, counts_of

app = new_group("Find out why work failed, and redrive or discard it.")

LETTERS = "/v1/ops/dead-letters"
PAGE_SIZE = 200
# What a person reads first; the other fields follow.
FIRST = ("kind", "dead_letter_id", "state", "since", "closed_at", "cause", "error", "attempts", "user_id")
PAST = {"redrive": "redriven", "discard": "discarded"}


class Kind(StrEnum):
    """The kinds of dead letters."""

    outbox = "outbox"
    notification = "notification"
    nats = "nats"


class State(StrEnum):
    """Whether dead letters wait for a decision."""

    open = "open"
    closed = "closed"


KindOption = Annotated[Kind, typer.Option("--kind", help="The kind of dead letters.", show_default=False)]
KindFilter = Annotated[Kind | None, typer.Option("--kind", help="Only this kind.")]
Cause = Annotated[str | None, typer.Option("--cause", help="Only this cause, as `groups` shows it.")]
User = Annotated[str | None, typer.Option("--user", help="Only of this user.")]
SkuFilter = Annotated[str | None, typer.Option("--sku", help="Only of this stock keeping unit.")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="This one; repeat it for more.")]
All = Annotated[bool, typer.Option("--all", help="All open ones of the kind.")]
EventType = Annotated[str | None, typer.Option("--event-type", help="Only of this event type.")]
ErrorText = Annotated[str | None, typer.Option("--error", help="Only with this text in the error.")]
OlderThan = Annotated[str | None, typer.Option("--older-than", metavar="DURATION", help="For example 2h.")]
NewerThan = Annotated[str | None, typer.Option("--newer-than", metavar="DURATION", help="For example 7d.")]
Rate = Annotated[int | None, typer.Option("--rate", min=1, help="The maximum number for each second.")]
Force = Annotated[bool, typer.Option("--force", help="Also those whose event id the inbox may have deleted.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the command until it has ended.")]


@register(app, "groups", "grantwire dead-letters groups", "grantwire dead-letters groups --json")
def groups(session: Session) -> None:
    """Show the open dead letters by cause, largest group first."""
    found = session.api.get(f"{LETTERS}/groups")
    if session.output.as_json:
        session.output.json(found)
        return
    columns = ("kind", "count", "first_at", "last_at", "cause")
    session.output.table(columns, [[group[name] for name in columns] for group in found["groups"]])
    session.note(f"{count_of(found['open'], 'open dead letter', capped=found['capped'])} on {session.target.title}.")


@register(
    app,
    "list",
    "grantwire dead-letters list",
    "grantwire dead-letters list --kind notification --cause 'receiver responded with status 500'",
    "grantwire dead-letters list --state closed --since 2026-11-01T00:00:00Z --json",
)
def list_(
    session: Session,
    kind: KindFilter = None,
    state: Annotated[State, typer.Option("--state", help="Open or closed ones.")] = State.open,
    cause: Cause = None,
    user: User = None,
    sku: SkuFilter = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only since this time.")] = None,
    limit: Limit = 50,
) -> None:
    """List dead letters, newest first."""
    found = session.api.pages(
        LETTERS,
        "dead_letters",
        cursor="cursor",
        next_cursor="next_cursor",
        kind=kind.value if kind else None,
        state=state.value,
        cause=cause,
        user_id=user,
        stock_keeping_unit=sku,
        since=since,
        limit=min(limit or PAGE_SIZE, PAGE_SIZE),
    )
    letters = list(itertools.islice(found, limit))
    if session.output.as_json:
        session.output.json({"dead_letters": letters})
        return
    columns = ("kind", "dead_letter_id", "since", "user_id", "stock_keeping_unit", "cause")
    session.output.table(columns, [[letter.get(name) for name in columns] for letter in letters])
    if len(letters) == limit:
        session.note(f"The newest {limit}; --limit shows more.")


@register(app, "show", "grantwire dead-letters show nats 6a1f0c9e-2b3d-4e5f-8a90-b1c2d3e4f506")
def show(
    session: Session,
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="outbox, notification or nats.", show_default=False)],
    dead_letter_id: Annotated[str, typer.Argument(metavar="ID", help="Its id.", show_default=False)],
) -> None:
    """Show one dead letter with its decoded message, and what operators did with it."""
    letter = session.api.get(path_of(f"{LETTERS}/{{kind}}/{{id}}", kind=kind.value, id=dead_letter_id))
    if session.output.as_json:
        session.output.json(letter)
        return
    message, actions = letter.pop("message", {}), letter.pop("actions", [])
    is_readable = message.get("text") is not None or message.get("hex") is not None
    as_bytes = message.pop("base64", None) if is_readable else None
    text = message.pop("text", None)
    if letter.get("cause") == letter.get("error"):
        letter["error"] = None  # it says nothing more
    first = {name: letter.get(name) for name in FIRST}
    shown = first | letter | {f"message.{name}": value for name, value in message.items()}
    session.output.fields({name: value for name, value in shown.items() if value is not None})
    if text is not None:
        session.output.text("message.text", "bold")
        for line in text.split("\n"):
            session.output.text(f"  {line.expandtabs(4)}")
    if as_bytes:
        session.note("--json has the bytes of the message, as base64.")
    columns = ("at", "action", "dry_run", "actor", "reason")
    if actions:
        session.output.table(columns, [[action.get(name) for name in columns] for action in actions])
    if letter.get("event_id"):
        session.note(f"Its path: grantwire trace --event-id {letter['event_id']}")


def _closing(action: str, help_text: str) -> Callable[..., int]:
    """Return the command that redrives or discards: show what would be done, ask, start it, and follow it."""

    def command(
        session: Session,
        kind: KindOption,
        reason: Reason,
        ids: Ids = None,
        all_: All = False,
        cause: Cause = None,
        user: User = None,
        sku: SkuFilter = None,
        event_type: EventType = None,
        error: ErrorText = None,
        older_than: OlderThan = None,
        newer_than: NewerThan = None,
        limit: Limit = None,
        rate: Rate = None,
        force: Force = False,
        actor: Actor = None,
        dry_run: DryRun = False,
        yes: Yes = False,
        wait: Wait = True,
        key: Key = None,
    ) -> int:
        filters = {
            "cause": cause,
            "user_id": user,
            "stock_keeping_unit": sku,
            "event_type": event_type,
            "error": error,
            "older_than": older_than,
            "newer_than": newer_than,
        }
        body = {"kind": kind.value, **_selection(ids, filters, everything=all_), **session.operator(actor, reason)}
        body |= {name: value for name, value in (("limit", limit), ("rate", rate), ("force", force)) if value}
        plan = preview(session, f"{LETTERS}/{action}", body)
        if dry_run or not plan["would_change"]:
            _print_preview(session, action, plan)
            return ExitCode.OK
        count = count_of(plan["would_change"], f"{kind} dead letter", capped=plan["more"])
        skipped = counts_of(plan["skipped"]) or "none"
        session.note(f"{plan['selected']} selected, {count} can be {PAST[action]}; skipped: {skipped}")
        session.confirm(f"{action.capitalize()} {count} on {session.target.title}?", yes=yes)
        accepted = post_with_key(session, f"{LETTERS}/{action}", body, key)
        if not wait:
            session.output.record(accepted)
            return ExitCode.OK
        return _print_end(session, finish(session, follow(session, accepted["command_id"])))

    command.__doc__ = help_text
    return command


register(
    app,
    "redrive",
    "grantwire dead-letters redrive --kind outbox --all --dry-run --reason 'NATS is back'",
    "grantwire dead-letters redrive --kind notification --cause 'receiver responded with status 500' --reason fixed",
    "grantwire dead-letters redrive --kind nats --id 6a1f0c9e-2b3d-4e5f-8a90-b1c2d3e4f506 --reason fixed --yes",
)(_closing("redrive", "Try dead letters again. A dry run comes first, then a question."))
register(
    app,
    "discard",
    "grantwire dead-letters discard --kind nats --error 'not an event' --reason 'test messages'",
    "grantwire dead-letters discard --kind outbox --id 6a1f0c9e-2b3d-4e5f-8a90-b1c2d3e4f506 --reason obsolete --yes",
)(_closing("discard", "Close dead letters without trying again. A dry run comes first, then a question."))


def _selection(ids: list[str] | None, filters: dict[str, str | None], *, everything: bool) -> dict[str, Any]:
    """Return the part of the request that selects dead letters: ids, a filter or all."""
    given = {name: value for name, value in filters.items() if value is not None}
    if sum((bool(ids), bool(given), everything)) != 1:
        raise typer.BadParameter("Select dead letters in one way: --id, --all, or filters such as --cause.")
    return {"ids": ids} if ids else {"filter": given} if given else {"all": True}


def _print_preview(session: Session, action: str, plan: dict[str, Any]) -> None:
    if session.output.as_json:
        session.output.json(plan)
        return
    session.output.fields(
        {
            "selected": plan["selected"],
            f"would be {PAST[action]}": plan["would_change"],
            "skipped": plan["skipped"],
        }
    )
    for dead_letter_id in plan["ids"]:
        session.output.text(f"  {dead_letter_id}")
    session.note("Nothing was changed." if plan["would_change"] else "There is nothing to do.")


def _print_end(session: Session, command: dict[str, Any]) -> int:
    progress = {name: value for name, value in (command.get("progress") or {}).items() if name != "skipped" or value}
    session.output.record(command, {"command_id": command["command_id"], "status": command["status"], **progress})
    return ExitCode.NEGATIVE if progress.get("skipped") else ExitCode.OK
