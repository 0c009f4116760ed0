"""The client that a local stack has from the start, who may do everything."""

from __future__ import annotations

import contextlib
import hmac
from typing import TYPE_CHECKING

from infra.local.layer import PLAINTEXT, product_code
from infra.local.system import files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from grantwire.runtime.clients import CallerRuntime

TOKEN_ENVIRONMENT = "dev"  # noqa: S105  # of every local stack
NAME = "development"


def development_token(database_url: str, file: Path) -> str:
    """Give the client's token: the one that `file` keeps, or a new one.

    The client stays the same as long as its database does, and so do its idempotency keys.
    """
    kept = file.read_text() if file.exists() else ""
    with client_runtime(local_environment(database_url)) as runtime:
        if _valid(runtime, kept):
            return kept
        token = _renew(runtime)
    files.write_private(file, token)
    return token


def local_environment(database_url: str) -> dict[str, str]:
    """Give the variables that the product's code reads, for the database of a local stack."""
    return {**PLAINTEXT, "DATABASE_URL": database_url, "TOKEN_ENVIRONMENT": TOKEN_ENVIRONMENT}


@contextlib.contextmanager
def client_runtime(environ: Mapping[str, str], hint: str = "") -> Iterator[CallerRuntime]:
    """Give what the function manage_clients works with, and close its connection in the end."""
    with product_code(hint):
        from grantwire.runtime.clients import CallerRuntime  # noqa: PLC0415  # found only now

        with contextlib.closing(CallerRuntime.build(environ)) as runtime:
            yield runtime


def _valid(runtime: CallerRuntime, token: str) -> bool:
    """Whether a token is its client's newest, and its client may do everything."""
    from grantwire.clients.scopes import Scope  # noqa: PLC0415
    from grantwire.clients.tokens import Token  # noqa: PLC0415
    from grantwire.errors import UnauthenticatedError  # noqa: PLC0415

    try:
        kept = Token.from_header(f"Bearer {token}")
    except UnauthenticatedError:
        return False
    client = runtime.clients.find(kept.client_id)
    if client is None or client.inactive_reason or client.scopes != frozenset(Scope):
        return False
    return hmac.compare_digest(client.token_hashes[0], kept.hash) and kept.environment == TOKEN_ENVIRONMENT


def _renew(runtime: CallerRuntime) -> str:
    """Make a new token for the client; a new client if there is none, or if it may not do everything."""
    from grantwire.clients.commands import ClientCommand  # noqa: PLC0415
    from grantwire.clients.scopes import Scope  # noqa: PLC0415

    event: dict[str, object] = {"action": "create", "name": NAME, "scopes": list(Scope)}
    for known in runtime.clients.list_all():
        if known["name"] == NAME and known["revoked_at"] is None:
            if set(known["scopes"]) == set(Scope):
                event = {"action": "rotate", "client_id": known["client_id"]}
                break
            runtime.clients.revoke(known["client_id"])
    return str(ClientCommand.parse(event).execute(runtime.clients)["token"])
