"""The tables and functions of the library in PostgreSQL, and how they are applied (C15).

Tables are numbered upgrades: each is applied once, in order, in its own transaction. The functions have one file each,
which is edited in place; all of them are applied after the tables. `idempotency_schema` stores what was applied. The
entitlement service applies the same files with its own migrations.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.optional import optional_package
from grantwire_idempotency.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.resources.abc import Traversable

# While an upgrade waits for a lock, all later statements on the table wait behind it: fail instead, and run it again.
_SET_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '5s'"

# The id is ASCII "gwidempo".
_TAKE_LOCK = "SELECT pg_advisory_xact_lock(x'67776964656d706f'::bigint)"

_CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS idempotency_schema (
    name       text        PRIMARY KEY,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
"""

_SELECT = "SELECT name, checksum FROM idempotency_schema"

_RECORD = """
INSERT INTO idempotency_schema (name, checksum) VALUES (%(name)s, %(checksum)s)
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, applied_at = now()
"""

TABLES = ("idempotency_keys", "processed_messages", "distributed_locks", "guarded_transactions")
SEQUENCES = ("idempotency_fences",)


@dataclass(frozen=True, slots=True)
class SqlFile:
    """An SQL file of the library; `name` is `tables/…` or `functions/…`."""

    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """The SHA-256 of the content, in hexadecimal."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def read_tables() -> list[SqlFile]:
    """Return the numbered upgrades in their order."""
    folder = _folder("tables")
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return [SqlFile(f"tables/{name}", folder.joinpath(name).read_text("utf-8")) for name in names]


def read_functions() -> list[SqlFile]:
    """Return the functions in the order in which they are created."""
    folder = _folder("functions")
    lines = folder.joinpath("order.txt").read_text("utf-8").splitlines()
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return [SqlFile(f"functions/{name}.sql", folder.joinpath(f"{name}.sql").read_text("utf-8")) for name in names]


def script(after: int = 0, roles: Sequence[str] = ()) -> str:
    """Return the SQL of all upgrades with a number above `after`, and of all functions, as one transaction."""
    tables = [file for file in read_tables() if _number(file) > after]
    parts = ["BEGIN;", _SET_LOCK_TIMEOUT + ";", _TAKE_LOCK + ";", _CREATE_TABLE.strip()]
    for file in (*tables, *read_functions()):
        parts.append(f"-- {file.name}\n{file.sql.strip()}")
        parts.append(_RECORD.strip() % {"name": f"'{file.name}'", "checksum": f"'{file.checksum}'"} + ";")
    parts += [_grants(role) for role in roles]
    return "\n\n".join([*parts, "COMMIT;"]) + "\n"


def apply(dsn: str, roles: Sequence[str] = ()) -> list[str]:
    """Apply what is missing in the database and return the names of the applied files.

    `roles` are the roles of applications that are not the owner of the tables; they get the privileges that the library
    needs. Raises InternalError if an applied upgrade was changed.
    """
    with optional_package("psycopg", used_by="the schema command"):
        import psycopg  # noqa: PLC0415 - only to apply

    applied: list[str] = []
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
        for file in read_tables():
            with connection.transaction():
                known = _prepare(connection)
                if known.get(file.name) == file.checksum:
                    continue
                if file.name in known:
                    raise InternalError(f"{file.name} was changed after it was applied to this database")
                _execute(connection, file)
                applied.append(file.name)
        with connection.transaction():
            known = _prepare(connection)
            functions = read_functions()
            if applied or any(known.get(file.name) != file.checksum for file in functions):
                for file in functions:
                    _execute(connection, file)
                    applied.append(file.name)
            for role in roles:
                connection.execute(_grants(role).encode(), prepare=False)
    return applied


def _prepare(connection: Any) -> dict[str, str]:
    connection.execute(_TAKE_LOCK)
    connection.execute(_CREATE_TABLE, prepare=False)
    connection.execute(_SET_LOCK_TIMEOUT)
    return dict(connection.execute(_SELECT).fetchall())


def _execute(connection: Any, file: SqlFile) -> None:
    connection.execute(file.sql.encode(), prepare=False)  # a file has several statements
    connection.execute(_RECORD, {"name": file.name, "checksum": file.checksum})


def _grants(role: str) -> str:
    quoted = '"' + role.replace('"', '""') + '"'
    functions = ", ".join(file.name.removeprefix("functions/").removesuffix(".sql") for file in read_functions())
    return (
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(TABLES)} TO {quoted};\n"
        f"GRANT USAGE ON SEQUENCE {', '.join(SEQUENCES)} TO {quoted};\n"
        f"GRANT EXECUTE ON FUNCTION {functions} TO {quoted};"
    )


def _number(file: SqlFile) -> int:
    return int(file.name.removeprefix("tables/")[:4])


def _folder(name: str) -> Traversable:
    return resources.files("grantwire_idempotency").joinpath("sql", name)
