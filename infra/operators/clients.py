"""Create, list, rotate, limit or revoke any client without the API, as the function manage_clients does.

For the first client of an installation, and for what no client may do (ADR 0048). The argument is the event of the
function, and the result is printed as JSON:

  python -m infra.operators.clients '{"action": "create", "name": "admin", "scopes": ["clients:write"], "actor": …}'

It logs in to DATABASE_URL or DATABASE_SECRET_ARN as a member of the role grantwire_clients, or else to the running
stack. There is no option for the address, because it contains a password and every account can read command lines.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.stack.description import read_description
from infra.local.stack.development_client import client_runtime, command_source, local_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def main(arguments: Sequence[str]) -> None:
    """Execute the command and print its result; exit with the reason if it is not possible."""
    try:
        event = json.loads(arguments[0]) if len(arguments) == 1 else None
    except ValueError as error:
        sys.exit(f"The argument is not JSON: {error}")
    if event is None:
        sys.exit(__doc__)
    try:
        with client_runtime(_environ(os.environ)) as runtime:
            from grantwire.clients.commands import ClientCommand  # noqa: PLC0415  # importable only here

            result = ClientCommand.parse(event).execute(runtime.clients, command_source("infra.operators.clients"))
    except CommandError as error:
        sys.exit(f"{error} {error.hint}".rstrip())
    print(json.dumps(result, indent=2))


def _environ(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables of the database in the environment, or of the running stack if there is none."""
    if environ.get("DATABASE_URL") or environ.get("DATABASE_SECRET_ARN"):
        return {"TOKEN_ENVIRONMENT": "live", **environ}
    return {**environ, **local_environment(read_description()["clients_database_url"])}


if __name__ == "__main__":
    main(sys.argv[1:])
