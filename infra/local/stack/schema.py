"""infra/sql/schema.sql: the result of all SQL files, as pg_dump writes it."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from infra.local.errors import CommandError
from infra.local.paths import CHECKOUT, STATE
from infra.local.servers.postgres import UNSAFE, PostgresServer
from infra.local.stack import database

# pg_dump writes the same schema differently in each major version; the file is written by this one.
MAJOR = 18

_NOISE = re.compile(r"--|SET |SELECT pg_catalog\.set_config|\\|$")


def write_schema() -> None:
    """Write infra/sql/schema.sql, using a temporary server.

    Raises CommandError if PostgreSQL has another major version than MAJOR.
    """
    with tempfile.TemporaryDirectory(dir=STATE, prefix="schema-") as folder:
        server = PostgresServer(Path(folder) / "postgres", settings=UNSAFE)
        if server.major != MAJOR:
            problem = (
                f"infra/sql/schema.sql must be written by PostgreSQL {MAJOR}, but this is PostgreSQL {server.major}."
            )
            raise CommandError(problem, hint=f"Set GRANTWIRE_POSTGRES_BIN to the programs of PostgreSQL {MAJOR}.")
        server.start()
        try:
            database.create(server)
            database.migrate(server, Path(folder) / "migrations")
            text = dump_schema(server.installation.binaries, database.owner_url(server))
        finally:
            server.destroy()
        (CHECKOUT / "infra" / "sql" / "schema.sql").write_text(text)


def dump_schema(binaries: Path, url: str) -> str:
    """Return the schema of a migrated database, without the lines that differ from run to run.

    These are comments and the monthly partitions of the audit.
    """
    parts = urlsplit(url)
    command: list[str | Path] = [
        binaries / "pg_dump",
        "--schema-only",
        "--no-owner",
        "--exclude-table=entitlement_audit_y*",
        urlunsplit(parts._replace(netloc=f"{parts.username}@{parts.netloc.rpartition('@')[2]}")),
    ]
    environment = {**os.environ, "PGPASSWORD": unquote(parts.password or "")}  # every account can read command lines
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return "\n".join(line for line in text.splitlines() if not _NOISE.match(line)) + "\n"
