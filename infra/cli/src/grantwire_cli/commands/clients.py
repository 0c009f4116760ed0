"""`grantwire clients`: registered callers of the API."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from grantwire_cli.api import path_of
from grantwire_cli.commands.parameters import Actor, Key, Reason, Yes
from grantwire_cli.following import post_with_key
from grantwire_cli.registry import new_group, register
from grantwire_cli.session import Session
from grantwire_cli.times import parse_rfc3339
from grantwire_cli.wording import count_of

app = new_group("Create, list, rotate, limit and revoke clients of the API.")

CLIENTS = "/v1/ops/clients"
ClientId = Annotated[str, typer.Argument(metavar="ID", help="The client's id, as `list` shows it.", show_default=False)]
ExpiresIn = Annotated[
    str | None, typer.Option("--expires-in", metavar="DURATION", help="For example 90d (default: never).")
]
NewExpiry = Annotated[
    str | None, typer.Option("--expires-in", metavar="DURATION", help="For example 90d (default: as before).")
]
RateLimit = Annotated[int | None, typer.Option("--rate-limit", min=1, help="Requests for each second.")]
WithDescendants = Annotated[
    bool, typer.Option("--with-descendants", help="Also the clients that it created, and those that they created.")
]
BurstLimit = Annotated[int | None, typer.Option("--burst-limit", min=1, help="Requests that it can send at once.")]


@register(app, "list", "grantwire clients list", "grantwire clients list --json | jq -r '.clients[].name'")
def list_(session: Session) -> None:
    """List all clients, without tokens."""
    found = session.api.get(CLIENTS)
    if session.output.as_json:
        session.output.json(found)
        return
    columns = ("client_id", "name", "state", "scopes", "rate", "burst", "last_used_at", "expires_at", "created_by")
    session.output.table(columns, [_row(client) for client in found["clients"]])


@register(
    app,
    "create",
    "grantwire clients create --name shop --scope entitlements:write --expires-in 90d --reason 'new shop'",
    "grantwire clients create --name console --scope ops:read --scope ops:write --reason 'on call' --json",
)
def create(
    session: Session,
    name: Annotated[str, typer.Option("--name", help="The client's name.", show_default=False)],
    scope: Annotated[list[str], typer.Option("--scope", help="A scope; repeat it for more.", show_default=False)],
    reason: Reason,
    expires_in: ExpiresIn = None,
    rate_limit: RateLimit = None,
    burst_limit: BurstLimit = None,
    actor: Actor = None,
    key: Key = None,
) -> None:
    """Create a client and print its token once.

    It is below your own client: it has scopes and limits that yours has, and expires with it at the latest.
    """
    body = {
        "name": name,
        "scopes": scope,
        "expires_in": expires_in,
        "rate_limit": rate_limit,
        "burst_limit": burst_limit,
    }
    _print_token(session, _post(session, CLIENTS, body, actor, reason, key))


@register(app, "rotate", "grantwire clients rotate 4k2j9x0q7w1z --overlap 1h --reason 'yearly rotation'")
def rotate(
    session: Session,
    client_id: ClientId,
    reason: Reason,
    overlap: Annotated[
        str | None, typer.Option("--overlap", metavar="DURATION", help="How long the previous token stays valid (24h).")
    ] = None,
    expires_in: NewExpiry = None,
    actor: Actor = None,
    key: Key = None,
) -> None:
    """Issue a new token; the previous one stays valid for a while. Only for clients below your own."""
    path = path_of(f"{CLIENTS}/{{id}}/rotate", id=client_id)
    _print_token(session, _post(session, path, {"overlap": overlap, "expires_in": expires_in}, actor, reason, key))


@register(
    app,
    "revoke",
    "grantwire clients revoke 4k2j9x0q7w1z --reason 'the shop closed'",
    "grantwire clients revoke 4k2j9x0q7w1z --with-descendants --reason 'the token leaked'",
)
def revoke(
    session: Session,
    client_id: ClientId,
    reason: Reason,
    with_descendants: WithDescendants = False,
    actor: Actor = None,
    yes: Yes = False,
    key: Key = None,
) -> None:
    """Revoke a client permanently, with --with-descendants also all clients below it."""
    below = " and all clients below it" if with_descendants else ""
    session.confirm(f"Revoke the client {client_id}{below} on {session.target.title} permanently?", yes=yes)
    path = path_of(f"{CLIENTS}/{{id}}/revoke", id=client_id)
    result = _post(session, path, {"with_descendants": with_descendants or None}, actor, reason, key)
    session.output.record(result)
    session.note("Its token stops working when the authorizer's cache time has passed.")
    if active := result["descendants_active"]:
        left = count_of(active, "client below it is", "clients below it are")
        session.warn(f"{left} not revoked. To revoke all of them, repeat the command with --with-descendants.")


@register(
    app,
    "limits",
    "grantwire clients limits 4k2j9x0q7w1z --rate-limit 50 --burst-limit 100 --reason 'import at night'",
    "grantwire clients limits 4k2j9x0q7w1z --reason 'back to the defaults'",
)
def limits(
    session: Session,
    client_id: ClientId,
    reason: Reason,
    rate_limit: RateLimit = None,
    burst_limit: BurstLimit = None,
    actor: Actor = None,
    key: Key = None,
) -> None:
    """Set the limits of a client below your own; without options it gets the defaults."""
    path = path_of(f"{CLIENTS}/{{id}}/limits", id=client_id)
    body = {"rate_limit": rate_limit, "burst_limit": burst_limit}
    session.output.record(_post(session, path, body, actor, reason, key))


def _post(
    session: Session, path: str, body: dict[str, Any], actor: str | None, reason: str, key: str | None
) -> dict[str, Any]:
    given = {name: value for name, value in body.items() if value is not None}
    result: dict[str, Any] = post_with_key(session, path, {**given, **session.operator(actor, reason)}, key)
    return result


def _print_token(session: Session, result: dict[str, Any]) -> None:
    session.output.record(result)
    if result.get("token") is None:
        session.warn(
            "This key was used before: the token was shown then, and is not stored. Rotate the client for another."
        )
    else:
        session.note("The token is not stored and not shown again.")


def _state(client: dict[str, Any]) -> str:
    if client["revoked_at"]:
        return "REVOKED"
    expires_at = client["expires_at"]
    return "EXPIRED" if expires_at and parse_rfc3339(expires_at) <= datetime.now(UTC) else "ACTIVE"


def _row(client: dict[str, Any]) -> list[object]:
    return [
        client["client_id"],
        client["name"],
        _state(client),
        " ".join(client["scopes"]),
        client["rate_limit"] or "default",
        client["burst_limit"] or "default",
        client["last_used_at"] or "never",
        client["expires_at"] or "never",
        client["created_by"] or "",
    ]
