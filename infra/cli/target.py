"""Which servers an operator's command works with: the running stack's, or those that the environment names.

Never by option: an address holds a password, and anybody on the machine can read a command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.layer import PLAINTEXT
from infra.local.stack.description import read_description

if TYPE_CHECKING:
    from collections.abc import Mapping

DATABASE = ("DATABASE_URL", "DATABASE_SECRET_ARN")
NATS = ("NATS_URL", "NATS_SECRET_ARN")
EPILOG = (
    "Works with the running stack; or with another one, if the environment has DATABASE_URL or DATABASE_SECRET_ARN, "
    "and NATS_URL or NATS_SECRET_ARN."
)


def environment(environ: Mapping[str, str], *, needs_nats: bool) -> dict[str, str]:
    """Give the variables that the product's own code reads: both servers of one stack, never one of each."""
    database, nats = (any(environ.get(name) for name in names) for names in (DATABASE, NATS))
    if not database and not nats:
        found = read_description()
        others = {name: value for name, value in environ.items() if name not in (*DATABASE, *NATS)}
        return {**others, **PLAINTEXT, "DATABASE_URL": found["database_url"], "NATS_URL": found["nats_url"]}
    if not database or (needs_nats and not nats):
        problem = "DATABASE_URL and NATS_URL, or the ARNs of their secrets, belong together."
        raise CommandError(problem, hint="Set both, or unset both to work with the running stack.")
    return {**environ} if nats else {**environ, "NATS_URL": "nats://not-needed"}
