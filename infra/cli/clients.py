"""`make clients`: create, list, rotate or revoke service clients.

It works with the running stack, or with what DATABASE_URL or DATABASE_SECRET_ARN of the environment leads to: an
address with a password belongs into no command line.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from infra.local.stack.description import read_description
from infra.local.stack.development_client import client_runtime, local_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infra.local.progress import Progress


def clients(arguments: Sequence[str], progress: Progress) -> int:
    """Carry out what the options say, as the function manage_clients does."""
    options = _parser().parse_args(arguments)
    with client_runtime(_environ(os.environ), hint="`--help` explains the options.") as runtime:
        from grantwire.clients.commands import ClientCommand  # noqa: PLC0415  # found only now

        answer = ClientCommand.parse(_event(options)).execute(runtime.clients)
    _say(answer, progress)
    return 0


def _environ(environ: Mapping[str, str]) -> Mapping[str, str]:
    """What the environment leads to, if it leads anywhere; otherwise the running stack."""
    if environ.get("DATABASE_URL") or environ.get("DATABASE_SECRET_ARN"):
        return {"TOKEN_ENVIRONMENT": "live", **environ}
    return {**environ, **local_environment(read_description()["database_url"])}


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
