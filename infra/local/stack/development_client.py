"""The client named `development`, which every local stack has, with all scopes."""

from __future__ import annotations

import contextlib
import hmac
import socket
from typing import TYPE_CHECKING

from infra.local.layer import PLAINTEXT, product_code
from infra.local.system import files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from grantwire.wiring.tasks.manage_clients import ClientsRuntime

TOKEN_ENVIRONMENT = "dev"  # noqa: S105  # the same for every local stack
NAME = "development"
OPERATOR = {"actor": "make up", "reason": "the development client of the local stack"}


def development_token(database_url: str, file: Path) -> str:
    """Return the development client's token: the one in `file` if it is valid, otherwise a new one.

    `database_url` has the credentials of the role for the administration of clients.
    The client is kept as long as its database, because idempotency keys belong to the client.
    """
    stored = file.read_text() if file.exists() else ""
    with client_runtime(local_environment(database_url)) as runtime:
        if _is_valid(runtime, stored):
            return stored
        token = _issue_token(runtime)
    files.write_private(file, token)
    return token


def local_environment(database_url: str) -> dict[str, str]:
    """Return the variables that the product's code reads, for the database of a local stack."""
    return {**PLAINTEXT, "DATABASE_URL": database_url, "TOKEN_ENVIRONMENT": TOKEN_ENVIRONMENT}


def command_source(program: str) -> str:
    """Return where an action came from: this machine and the program."""
    return f"command line of {socket.gethostname()}, {program}"


@contextlib.contextmanager
def client_runtime(environ: Mapping[str, str], hint: str = "") -> Iterator[ClientsRuntime]:
    """Provide the runtime of the function manage_clients, and close its connection at the end."""
    with product_code(hint):
        from grantwire.wiring.tasks.manage_clients import ClientsRuntime  # noqa: PLC0415  # importable only here

        with contextlib.closing(ClientsRuntime.build(environ)) as runtime:
            yield runtime


def _is_valid(runtime: ClientsRuntime, token: str) -> bool:
    """Return whether a token is the newest one of its client, and the client has all scopes."""
    from grantwire.clients.scopes import Scope  # noqa: PLC0415
    from grantwire.clients.tokens import Token  # noqa: PLC0415
    from grantwire.errors import UnauthenticatedError  # noqa: PLC0415

    try:
        parsed = Token.from_header(f"Bearer {token}")
    except UnauthenticatedError:
        return False
    client = runtime.clients.find(parsed.client_id)
    if client is None or client.inactive_reason or client.scopes != frozenset(Scope):
        return False
    return hmac.compare_digest(client.token_hashes[0], parsed.hash) and parsed.environment == TOKEN_ENVIRONMENT


def _issue_token(runtime: ClientsRuntime) -> str:
    """Return a new token for the client; create the client if there is none with all scopes."""
    from grantwire.clients.commands import ClientCommand  # noqa: PLC0415
    from grantwire.clients.scopes import Scope  # noqa: PLC0415

    def execute(**event: object) -> dict[str, object]:
        return ClientCommand.parse(event | OPERATOR).execute(runtime.clients, command_source("make up"))

    event: dict[str, object] = {"action": "create", "name": NAME, "scopes": list(Scope)}
    for known in runtime.clients.list_all():
        if known["name"] == NAME and known["revoked_at"] is None:
            if set(known["scopes"]) == set(Scope):
                event = {"action": "rotate", "client_id": known["client_id"]}
                break
            execute(action="revoke", client_id=known["client_id"])
    return str(execute(**event)["token"])
