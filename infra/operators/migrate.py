"""Apply the migrations, as the owner, to the database of DATABASE_URL or DATABASE_SECRET_ARN.

This is a separate program because the layer logs to standard output. It connects like the functions: over TLS, unless
DATABASE_TLS says otherwise.
"""

from __future__ import annotations

import os
import sys

from infra.local.layer import STATEMENT_TIMEOUT, add_layer_to_path


def main() -> None:
    """Run the same code as the function migrate_database, and print the applied migrations."""
    add_layer_to_path()
    from grantwire.database import DatabaseSettings, connect  # noqa: PLC0415  # importable only here
    from grantwire.database.migrations import apply, read_schema  # noqa: PLC0415
    from grantwire.errors import GrantwireError  # noqa: PLC0415
    from grantwire.settings import load  # noqa: PLC0415

    settings = load(DatabaseSettings, {"DATABASE_STATEMENT_TIMEOUT": STATEMENT_TIMEOUT, **os.environ})
    with connect(settings, application_name="grantwire-migrate") as connection:
        try:
            applied = apply(connection, read_schema())
        except GrantwireError as error:
            sys.exit(str(error))
    print(f"applied: {', '.join(applied) or 'nothing new'}")


if __name__ == "__main__":
    main()
