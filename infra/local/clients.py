"""`make clients`: create, list, rotate or revoke service clients; and the client that a local stack has from the start.

It works with the running stack, or with what DATABASE_URL or DATABASE_SECRET_ARN of the environment leads to: an
address with a password belongs into no command line.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import os
import sys
from typing import TYPE_CHECKING, Any

from infra.local import private
from infra.local.basics import description
from infra.local.environments import PACKAGES
from infra.local.errors import LocalStackError
from infra.local.servers import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from grantwire.runtime.clients import CallerRuntime
    from infra.local.progress import Progress

TOKEN_ENVIRONMENT = "dev"  # noqa: S105  # of every local stack
NAME = "development"


def clients(arguments: Sequence[str], progress: Progress) -> int:
    """Carry out what the options say, as the function manage_clients does."""
    options = _parser().parse_args(arguments)
    with _runtime(_environ(os.environ), hint="`--help` explains the options.") as runtime:
        answer = _carried_out(runtime, _event(options))
    _say(answer, progress)
    return 0


def development_token(database_url: str, file: Path) -> str:
    """The token of a local stack's own client, who may do everything: the one that `file` keeps, or a new one.

    The client stays the same as long as its database does, and so do its idempotency keys.
    """
    kept = file.read_text() if file.exists() else ""
    with _runtime(_local(database_url)) as runtime:
        if _works(runtime, kept):
            return kept
        token = _renewed(runtime)
    private.write(file, token)
    return token


def _works(runtime: CallerRuntime, token: str) -> bool:
    """Whether a token is its client's newest, and its client may do everything."""
    from grantwire.clients.scopes import Scope  # noqa: PLC0415
    from grantwire.clients.tokens import Token  # noqa: PLC0415
    from grantwire.errors import UnauthenticatedError  # noqa: PLC0415

    try:
        kept = Token.of_header(f"Bearer {token}")
    except UnauthenticatedError:
        return False
    client = runtime.clients.find(kept.client_id)
    if client is None or client.refusal or client.scopes != frozenset(Scope):
        return False
    return hmac.compare_digest(client.hashes[0], kept.hash) and kept.environment == TOKEN_ENVIRONMENT


def _renewed(runtime: CallerRuntime) -> str:
    """A new token for the development client; a new client if there is none, or if it may not do everything."""
    from grantwire.clients.scopes import Scope  # noqa: PLC0415

    for known in runtime.clients.all():
        if known["name"] == NAME and known["revoked_at"] is None:
            if set(known["scopes"]) == set(Scope):
                return str(_carried_out(runtime, {"action": "rotate", "client_id": known["client_id"]})["token"])
            runtime.clients.revoke(known["client_id"])
    return str(_carried_out(runtime, {"action": "create", "name": NAME, "scopes": list(Scope)})["token"])


def _carried_out(runtime: CallerRuntime, event: Mapping[str, Any]) -> dict[str, Any]:
    from grantwire.clients.orders import ClientOrder  # noqa: PLC0415

    return ClientOrder.parse(event).carry_out(runtime.clients)


@contextlib.contextmanager
def _runtime(environ: Mapping[str, str], hint: str = "") -> Iterator[CallerRuntime]:
    """The layer's own code, found only now, with its connection; silent, because its lines are for machines."""
    sys.path[:0] = (folder for folder in map(str, PACKAGES) if folder not in sys.path)
    from grantwire.errors import GrantwireError  # noqa: PLC0415
    from grantwire.observability import log  # noqa: PLC0415
    from grantwire.runtime.clients import CallerRuntime  # noqa: PLC0415

    level = log.log_level
    log.setLevel("CRITICAL")
    try:
        runtime = CallerRuntime.build(environ)
        try:
            yield runtime
        finally:
            runtime.close()
    except GrantwireError as error:
        raise LocalStackError(f"{error}", hint=hint) from error
    finally:
        log.setLevel(level)


def _environ(environ: Mapping[str, str]) -> Mapping[str, str]:
    """What the environment leads to, if it leads anywhere; otherwise the running stack."""
    if environ.get("DATABASE_URL") or environ.get("DATABASE_SECRET_ARN"):
        return {"TOKEN_ENVIRONMENT": "live", **environ}
    return {**environ, **_local(description()["database_url"])}


def _local(database_url: str) -> dict[str, str]:
    return {**PLAINTEXT, "DATABASE_URL": database_url, "TOKEN_ENVIRONMENT": TOKEN_ENVIRONMENT}


def _parser() -> argparse.ArgumentParser:
    epilog = "On the running stack; or with DATABASE_URL (or DATABASE_SECRET_ARN) and TOKEN_ENVIRONMENT on another."
    parser = argparse.ArgumentParser(prog="clients", description="Manage service clients.", epilog=epilog)
    actions = parser.add_subparsers(dest="action", required=True, metavar="create | list | rotate | revoke")
    create = actions.add_parser("create", help="make a client; its token is shown once")
    create.add_argument("--name", required=True, help="what people call it")
    create.add_argument("--scope", dest="scopes", required=True, action="append", help="may be given more than once")
    actions.add_parser("list", help="show all, without tokens")
    rotate = actions.add_parser("rotate", help="make a new token; the one before it goes on for a while")
    revoke = actions.add_parser("revoke", help="end a client for good")
    for one in (rotate, revoke):
        one.add_argument("client_id", metavar="ID", help="see `list`")
    rotate.add_argument("--overlap", metavar="DURATION", help="how long the token before goes on; 24h")
    for one in (create, rotate):
        one.add_argument("--expires-in", metavar="DURATION", help="such as 90d; never, unless given")
    return parser


def _event(options: argparse.Namespace) -> dict[str, Any]:
    """What the function would be invoked with."""
    return {name: value for name, value in vars(options).items() if value is not None}


def _say(answer: Mapping[str, Any], progress: Progress) -> None:
    for one in answer.get("clients", []):
        state = "revoked" if one["revoked_at"] else f"until {one['expires_at']}" if one["expires_at"] else "active"
        used = f"last used {one['last_used_at']}" if one["last_used_at"] else "never used"
        progress.say(f"{one['client_id']}  {one['name']}: {' '.join(one['scopes'])}; {state}; {used}")
    if "clients" in answer:
        progress.say(f"{len(answer['clients'])} clients.")
    elif "token" in answer:
        ends = answer["expires_at"]
        progress.say(f"Client {answer['client_id']}, {f'until {ends}' if ends else 'without an end'}.")
        progress.say("Its token, which is kept nowhere and not shown again:")
        progress.say(answer["token"])
    else:
        progress.say(f"{answer['client_id']} is revoked; within the authorizer's cache time nobody gets in with it.")
