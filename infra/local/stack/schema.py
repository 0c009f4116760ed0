"""The schema as one file to read: what all migrations and functions together make, in pg_dump's words."""

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

# pg_dump words the same schema differently in each major version; the file is in this one's words.
MAJOR = 18

_NOISE = re.compile(r"--|SET |SELECT pg_catalog\.set_config|\\|$")


def write_schema() -> None:
    """Write infra/schema.sql anew, from a server of its own."""
    with tempfile.TemporaryDirectory(dir=STATE, prefix="schema-") as folder:
        server = PostgresServer(Path(folder) / "postgres", settings=UNSAFE)
        if server.major != MAJOR:
            raise CommandError(f"infra/schema.sql is written by PostgreSQL {MAJOR}, this is {server.major}.")
        server.start()
        try:
            database.create(server)
            database.migrate(server, Path(folder) / "migrations")
            text = dump_schema(server.installation.binaries, database.url(server))
        finally:
            server.destroy()
        (CHECKOUT / "infra" / "schema.sql").write_text(text)


def dump_schema(binaries: Path, url: str) -> str:
    """The schema of a migrated database, without what differs from run to run: comments and the months' partitions."""
    parts = urlsplit(url)
    command: list[str | Path] = [
        binaries / "pg_dump",
        "--schema-only",
        "--no-owner",
        "--exclude-table=entitlement_audit_y*",
        urlunsplit(parts._replace(netloc=f"{parts.username}@{parts.netloc.rpartition('@')[2]}")),
    ]
    environment = {**os.environ, "PGPASSWORD": unquote(parts.password or "")}  # anybody can read a command line
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return "\n".join(line for line in text.splitlines() if not _NOISE.match(line)) + "\n"
