"""`make clients`: create, list, rotate, limit or revoke clients of the API.

It works with the database of the running stack, or with that of DATABASE_URL or DATABASE_SECRET_ARN, and logs in with
the role for the administration of clients. There is no option for the address, because it contains a password and every
account can read command lines.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from grantwire_cli.wording import count_of
from infra.local.stack.description import read_description
from infra.local.stack.development_client import client_runtime, local_environment
from infra.local.system.operator import add_operator_options, command_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infra.local.progress import Progress


EPILOG = """\
Works with the running stack. For another stack, set these variables:
  DATABASE_URL or DATABASE_SECRET_ARN, with a member of the role grantwire_clients
  TOKEN_ENVIRONMENT (default: live)

examples:
  make clients ARGS="create --name shop --scope entitlements:write --expires-in 90d --reason 'new shop'"
  make clients ARGS=list
  make clients ARGS="rotate 4k2j9x0q7w1z --overlap 1h --reason 'yearly rotation'"
  make clients ARGS="limits 4k2j9x0q7w1z --rate-limit 50 --burst-limit 100 --reason 'import at night'"
  make clients ARGS="revoke 4k2j9x0q7w1z --with-descendants --reason 'the token leaked'"

exit codes:
  0  done
  1  the command failed
"""


def clients(arguments: Sequence[str], progress: Progress) -> int:
    """Execute the command like the function manage_clients, and print the result.

    Raises CommandError if the options are not valid or the database is not available.
    """
    options = _parser().parse_args(arguments)
    with client_runtime(_environ(os.environ), hint="See --help for the options.") as runtime:
        from grantwire.clients.commands import ClientCommand  # noqa: PLC0415  # importable only here

        result = ClientCommand.parse(_event(options)).execute(runtime.clients, command_source("clients"))
    _print_result(result, progress)
    return 0


def _environ(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables of the database in the environment, or of the running stack if there is none."""
    if environ.get("DATABASE_URL") or environ.get("DATABASE_SECRET_ARN"):
        return {"TOKEN_ENVIRONMENT": "live", **environ}
    return {**environ, **local_environment(read_description()["clients_database_url"])}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="clients",
        description="Manage clients of the API.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="create | list | rotate | limits | revoke")
    create = actions.add_parser("create", help="create a client and print its token once")
    create.add_argument("--name", required=True, help="the client's name")
    create.add_argument(
        "--scope", dest="scopes", required=True, action="append", help="a scope of the client; repeat it for more"
    )
    actions.add_parser("list", help="list all clients, without tokens")
    rotate = actions.add_parser("rotate", help="issue a new token; the previous one stays valid for a while")
    limits = actions.add_parser("limits", help="set the limits of a client; without options it gets the defaults")
    revoke = actions.add_parser("revoke", help="revoke a client permanently")
    revoke.add_argument(
        "--with-descendants", action="store_true", help="also the clients that it created, and those that they created"
    )
    for action in (rotate, limits, revoke):
        action.add_argument("client_id", metavar="ID", help="the client's id, as `list` shows it")
    for action in (create, rotate, limits, revoke):
        add_operator_options(action)
    rotate.add_argument("--overlap", metavar="DURATION", help="how long the previous token stays valid (default: 24h)")
    for action in (create, limits):
        action.add_argument("--rate-limit", type=int, metavar="NUMBER", help="requests per second")
        action.add_argument("--burst-limit", type=int, metavar="NUMBER", help="requests that it can send at once")
    for action in (create, rotate):
        action.add_argument(
            "--expires-in", metavar="DURATION", help="when the client expires, for example 90d (default: never)"
        )
    return parser


def _event(options: argparse.Namespace) -> dict[str, Any]:
    """Return the event that the function would be invoked with."""
    return {name: value for name, value in vars(options).items() if value is not None}


def _print_result(result: Mapping[str, Any], progress: Progress) -> None:
    for client in result.get("clients", []):
        expires_at = client["expires_at"]
        status = "revoked" if client["revoked_at"] else f"until {expires_at}" if expires_at else "active"
        used = f"last used {client['last_used_at']}" if client["last_used_at"] else "never used"
        progress.print_line(
            f"{client['client_id']}  {client['name']}: {' '.join(client['scopes'])}; {status}; {used};"
            f" {_describe_limits(client)}{_describe_creator(client)}"
        )
    if "clients" in result:
        progress.print_line(f"{count_of(len(result['clients']), 'client')}.")
    elif "token" in result:
        expires_at = result["expires_at"]
        validity = f"valid until {expires_at}" if expires_at else "without expiry"
        progress.print_line(f"Client {result['client_id']}, {validity}.")
        progress.print_line("Its token, which is not stored and not shown again:")
        progress.print_line(result["token"])
    elif "rate_limit" in result:
        progress.print_line(f"{result['client_id']} has new limits: {_describe_limits(result)}.")
    else:
        progress.print_line(
            f"{result['client_id']} is revoked. Its token stops working when the authorizer's cache time has passed."
        )
        if revoked := result["descendants_revoked"]:
            progress.print_line(f"{count_of(revoked, 'client below it is', 'clients below it are')} revoked, too.")
        if active := result["descendants_active"]:
            left = count_of(active, "client below it is", "clients below it are")
            progress.print_line(f"{left} not revoked: see --with-descendants.")


def _describe_creator(client: Mapping[str, Any]) -> str:
    return f"; created by {client['created_by']}" if client["created_by"] else ""


def _describe_limits(client: Mapping[str, Any]) -> str:
    rate, burst = client["rate_limit"] or "default", client["burst_limit"] or "default"
    return f"rate limit {rate}, burst limit {burst}"
