"""The servers that an operator's command works with: those of the running stack, or those of the environment.

There are no options for addresses, because these contain passwords and every account can read command lines.
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
EPILOG = """\
Works with the running stack. For another stack, set these variables:
  DATABASE_URL or DATABASE_SECRET_ARN
  NATS_URL or NATS_SECRET_ARN
"""


def environment(environ: Mapping[str, str], *, needs_nats: bool) -> dict[str, str]:
    """Return the variables that the product's code reads, with both servers from the same stack.

    Raises CommandError if the environment names only one of the servers that are needed.
    """
    has_database, has_nats = (any(environ.get(name) for name in names) for names in (DATABASE, NATS))
    if not has_database and not has_nats:
        stack = read_description()
        others = {name: value for name, value in environ.items() if name not in (*DATABASE, *NATS)}
        return {**others, **PLAINTEXT, "DATABASE_URL": stack["database_url"], "NATS_URL": stack["nats_url"]}
    if not has_database or (needs_nats and not has_nats):
        problem = "DATABASE_URL and NATS_URL, or the ARNs of their secrets, belong together."
        raise CommandError(problem, hint="Set both, or unset both to work with the running stack.")
    return {**environ} if has_nats else {**environ, "NATS_URL": "nats://not-needed"}
