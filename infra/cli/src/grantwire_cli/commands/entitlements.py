"""`grantwire entitlements`: grant, revoke, extend, list, check, history."""

import itertools
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from grantwire_cli.api import Response, path_of
from grantwire_cli.changes import send_change
from grantwire_cli.commands.parameters import Key, Limit, Reason, Sku, UserId, Yes
from grantwire_cli.errors import ExitCode
from grantwire_cli.registry import new_group, register
from grantwire_cli.session import Session
from grantwire_cli.times import absolute_time, human_time

app = new_group("Grant, revoke, extend, list and check entitlements.")

PAGE_SIZE = 1000
USER = "/v1/users/{user_id}/entitlements"
ENTITLEMENT = f"{USER}/{{sku}}"


class Status(StrEnum):
    """The statuses of an entitlement, as of now."""

    SCHEDULED = "SCHEDULED"
    ACTIVE = "ACTIVE"
    EXPIRED = "EXPIRED"
    REVOKED = "REVOKED"


PurchaseId = Annotated[
    str | None, typer.Option("--purchase-id", help="The purchase behind the change (default: the idempotency key).")
]
Starts = Annotated[
    str | None, typer.Option("--starts", metavar="TIME", help="The start: 2027-01-01T00:00:00Z, or 7d from now.")
]
Expires = Annotated[
    str | None, typer.Option("--expires", metavar="TIME", help="The end: 2027-01-31T00:00:00Z, or 30d from now.")
]


@register(
    app,
    "grant",
    "grantwire entitlements grant u_123 item1 --reason purchase --purchase-id p_456",
    "grantwire entitlements grant u_123 club --reason trial --expires 14d",
    "grantwire entitlements grant u_123 item1 --reason purchase --key p_456 --json",
)
def grant(
    session: Session,
    user_id: UserId,
    sku: Sku,
    reason: Reason,
    purchase_id: PurchaseId = None,
    starts: Starts = None,
    expires: Expires = None,
    key: Key = None,
) -> None:
    """Grant an entitlement, at most once for each key.

    While the outcome is unknown, the request is repeated with the same key.
    """
    body = _change(user_id, sku, reason, purchase_id) | _times(starts_at=starts, expires_at=expires)
    _print_change(session, send_change(session, "grant", key, body))


@register(
    app,
    "revoke",
    "grantwire entitlements revoke u_123 item1 --reason refund --purchase-id p_457",
    "grantwire entitlements revoke u_123 item1 --reason fraud --yes",
)
def revoke(
    session: Session,
    user_id: UserId,
    sku: Sku,
    reason: Reason,
    purchase_id: PurchaseId = None,
    key: Key = None,
    yes: Yes = False,
) -> None:
    """Revoke an entitlement, at most once for each key."""
    session.confirm(f"Revoke {sku} of {user_id} on {session.target.title}?", yes=yes)
    _print_change(session, send_change(session, "revoke", key, _change(user_id, sku, reason, purchase_id)))


@register(
    app,
    "extend",
    "grantwire entitlements extend u_123 club --expires 30d --reason renewal --purchase-id p_461",
    "grantwire entitlements extend u_123 club --no-end --reason upgrade",
)
def extend(
    session: Session,
    user_id: UserId,
    sku: Sku,
    reason: Reason,
    expires: Expires = None,
    no_end: Annotated[bool, typer.Option("--no-end", help="Remove the end.")] = False,
    purchase_id: PurchaseId = None,
    key: Key = None,
) -> None:
    """Move the end of an entitlement, or remove it."""
    if no_end == bool(expires):
        raise typer.BadParameter("Give one of --expires and --no-end.")
    end = {"expires_at": None} if no_end else _times(expires_at=expires)
    _print_change(session, send_change(session, "extend", key, _change(user_id, sku, reason, purchase_id) | end))


@register(
    app,
    "list",
    "grantwire entitlements list u_123",
    "grantwire entitlements list u_123 --status ACTIVE --prefix premium.",
    "grantwire entitlements list u_123 --json | jq '.entitlements[].stock_keeping_unit'",
)
def list_(
    session: Session,
    user_id: UserId,
    status: Annotated[Status | None, typer.Option("--status", help="Only those with this status now.")] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="TEXT", help="Only those whose stock keeping unit begins with it.")
    ] = None,
    limit: Limit = None,
) -> None:
    """List the entitlements of a user, from the system of record."""
    found = session.api.pages(
        path_of(USER, user_id=user_id),
        "entitlements",
        cursor="after",
        next_cursor="next_after",
        status=status.value if status else None,
        prefix=prefix,
        limit=min(limit or PAGE_SIZE, PAGE_SIZE),
    )
    entitlements = itertools.islice(found, limit)
    if session.output.as_json:
        session.output.json({"user_id": user_id, "entitlements": list(entitlements)})
        return
    columns = ("stock_keeping_unit", "status", "version", "starts_at", "expires_at", "updated_at")
    rows = [[item.get(name) for name in columns] for item in entitlements]
    session.output.table(columns, rows)
    if not rows:
        such = "such entitlements" if status or prefix else "entitlements"
        session.note(f"{user_id} has no {such} on {session.target.title}.")


@register(
    app,
    "check",
    "grantwire entitlements check u_123 item1",
    "grantwire entitlements check u_123 club --at 2026-12-24T18:00:00Z",
    "grantwire entitlements check u_123 item1 >/dev/null && echo entitled",
)
def check(
    session: Session,
    user_id: UserId,
    sku: Sku,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help="As of a past time.")] = None,
) -> int:
    """Check whether a user may use something now, and why.

    The exit code is 0 if the user may, and 5 if not.
    """
    result = session.api.get(path_of(ENTITLEMENT, user_id=user_id, sku=sku), at=at)
    if session.output.as_json:
        session.output.json(result)
    else:
        reason = result.get("reason") or {}
        shown = {"allowed": result["allowed"], "status": result["status"], "reason": human_time(reason.get("message"))}
        times = ("starts_at", "expires_at", "updated_at", "checked_at", "cache_until")
        shown |= {name: result.get(name) for name in ("version", *times) if result.get(name) is not None}
        session.output.fields(shown)
    return ExitCode.OK if result["allowed"] else ExitCode.NEGATIVE


@register(
    app,
    "history",
    "grantwire entitlements history u_123 item1",
    "grantwire entitlements history u_123 item1 --limit 5 --json",
)
def history(session: Session, user_id: UserId, sku: Sku, limit: Limit = None) -> None:
    """Show the changes of an entitlement, newest first."""
    found = session.api.pages(
        path_of(f"{ENTITLEMENT}/history", user_id=user_id, sku=sku),
        "history",
        cursor="before",
        next_cursor="next_before",
        limit=min(limit or PAGE_SIZE, PAGE_SIZE),
    )
    changes = list(itertools.islice(found, limit))
    if session.output.as_json:
        session.output.json({"user_id": user_id, "stock_keeping_unit": sku, "history": changes})
        return
    columns = ("version", "operation", "status", "occurred_at", "expires_at", "caller", "purchase_id", "reason")
    session.output.table(columns, [[item.get(name) for name in columns] for item in changes])
    if not changes:
        session.note(f"{user_id} never had {sku} on {session.target.title}, or the audit no longer has it.")


def _change(user_id: str, sku: str, reason: str, purchase_id: str | None) -> dict[str, Any]:
    purchase = {"purchase_id": purchase_id} if purchase_id is not None else {}
    return {"user_id": user_id, "stock_keeping_unit": sku, "reason": reason, **purchase}


def _times(**given: str | None) -> dict[str, Any]:
    now = datetime.now(UTC).replace(microsecond=0)
    return {name: absolute_time(text, now) for name, text in given.items() if text is not None}


def _print_change(session: Session, response: Response) -> None:
    if session.output.as_json:
        session.output.json({**response.body, "replayed": response.replayed})
        return
    session.output.fields(response.body)
    if response.replayed:
        session.note("This is the stored response of an earlier request with this key; nothing was changed now.")
