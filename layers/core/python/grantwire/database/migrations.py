"""Applies the database schema from SQL files: each migration once and in order, then all SQL functions.

Migrations are numbered, forward-only files: tables, indexes, views, roles and privileges. Each is applied in its own
transaction, those of the idempotency library first. The table `schema_migrations` stores their names and checksums. If
an applied file was changed or is missing, nothing is applied, because the database would no longer match the files.

Each SQL function has its own file, which is edited in place. All of them are applied in one transaction, in the order
of `order.txt` and followed by `after_functions.sql`. This happens if one of these files changed or a migration was
applied. The table `schema_functions` stores their names and checksums.

Concurrent runs wait for each other, with an advisory lock for each transaction.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import psycopg

from grantwire.errors import InternalError
from grantwire.observability import logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from importlib.resources.abc import Traversable

    Connection = psycopg.Connection[tuple[Any, ...]]

_LIBRARY = "grantwire_idempotency"
# The prefix of the library's files in the database: the library has its own numbers.
_LIBRARY_PREFIX = "idempotency/"

_MIGRATION_FILE_NAME = re.compile(r"\d{4}_[a-z0-9_]+\.sql")

# The first migration of databases that were created before the migrations were merged into one baseline.
_FIRST_BEFORE_BASELINE = "0001_idempotency_keys.sql"

# While a migration waits for a lock, all later statements on the table wait behind it: fail instead, and run it again.
_SET_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '5s'"

# The id is ASCII "gwmigrat".
_TAKE_LOCK = "SELECT pg_advisory_xact_lock(x'67776d6967726174'::bigint)"

_CREATE_TABLES = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    name       text        PRIMARY KEY,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS schema_functions (
    name       text        PRIMARY KEY,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""

_SELECT_MIGRATIONS = "SELECT name, checksum FROM schema_migrations"

_RECORD_MIGRATION = "INSERT INTO schema_migrations (name, checksum) VALUES (%s, %s)"

_SELECT_FUNCTIONS = "SELECT name, checksum FROM schema_functions"

_DELETE_FUNCTIONS = "DELETE FROM schema_functions"

_RECORD_FUNCTIONS = """
INSERT INTO schema_functions (name, checksum) SELECT * FROM unnest(%(names)s::text[], %(checksums)s::text[])
"""

_DELETE_AUDIT_RETENTION = "DELETE FROM audit_retention"

_SET_AUDIT_RETENTION = """
INSERT INTO audit_retention (keep_months) VALUES (%s)
ON CONFLICT (single) DO UPDATE SET keep_months = EXCLUDED.keep_months
"""


@dataclass(frozen=True, slots=True)
class SqlFile:
    """An SQL file, with its name in the database."""

    name: str
    sql: bytes

    @property
    def checksum(self) -> str:
        """The SHA-256 of the content, in hexadecimal."""
        return hashlib.sha256(self.sql).hexdigest()


@dataclass(frozen=True, slots=True)
class Schema:
    """All SQL files in the order in which they are applied; the last of `functions` is `after_functions.sql`."""

    migrations: tuple[SqlFile, ...]
    functions: tuple[SqlFile, ...]


def read_schema(migrations: Traversable, sql: Traversable) -> Schema:
    """Read the migrations and functions of the idempotency library and of the service, the library's first.

    `sql` is the folder `infra/sql`.
    """
    library = resources.files(_LIBRARY).joinpath("sql")
    return Schema(
        (*read_migrations(library.joinpath("tables"), _LIBRARY_PREFIX), *read_migrations(migrations)),
        (
            *read_functions(library.joinpath("functions"), _LIBRARY_PREFIX),
            *read_functions(sql.joinpath("functions")),
            SqlFile("after_functions.sql", sql.joinpath("after_functions.sql").read_bytes()),
        ),
    )


def read_migrations(directory: Traversable, prefix: str = "") -> list[SqlFile]:
    """Read migrations in the order of their numbers, which must be unique."""
    files = _sql_files(directory)
    if not files:
        raise InternalError(f"no migrations in {directory}")
    if invalid := [name for name in files if not _MIGRATION_FILE_NAME.fullmatch(name)]:
        raise InternalError(f"not named like 0001_what_it_does.sql: {', '.join(invalid)}")
    numbers = [name[:4] for name in files]
    if duplicates := {number for number in numbers if numbers.count(number) > 1}:
        raise InternalError(f"migration numbers used twice: {', '.join(sorted(duplicates))}")
    return [SqlFile(prefix + name, content) for name, content in files.items()]


def read_functions(directory: Traversable, prefix: str = "") -> list[SqlFile]:
    """Read SQL functions in the order of `order.txt`, which must list each file once."""
    files = _sql_files(directory)
    lines = directory.joinpath("order.txt").read_text("utf-8").splitlines()
    listed = [f"{line.strip()}.sql" for line in lines if line.strip() and not line.startswith("#")]
    for problem, names in (
        ("listed twice", {name for name in listed if listed.count(name) > 1}),
        ("listed, but there is no such file", set(listed) - files.keys()),
        ("not listed", files.keys() - set(listed)),
    ):
        if names:
            raise InternalError(f"order.txt in {directory} is wrong; {problem}: {', '.join(sorted(names))}")
    return [SqlFile(prefix + name, files[name]) for name in listed]


def apply(connection: Connection, schema: Schema) -> list[str]:
    """Apply pending migrations and changed functions; return the names of the applied files.

    Raises InternalError, which names the file, if one fails. Migrations before it stay applied; functions are unchanged
    until all of them succeed.
    """
    applied = []
    while (name := _apply_next(connection, schema.migrations)) is not None:
        applied.append(name)
    return applied + _apply_functions(connection, schema.functions)


def limit_audit_retention(connection: Connection, months: int | None) -> None:
    """Set how many months of the audit must be kept before the sweep may drop them; None means forever.

    Only the owner of the schema can change this: the privileges of the functions do not suffice to shorten the audit.
    """
    if months is None:
        connection.execute(_DELETE_AUDIT_RETENTION)
    else:
        connection.execute(_SET_AUDIT_RETENTION, (months,))


def _apply_next(connection: Connection, migrations: Sequence[SqlFile]) -> str | None:
    """Apply the first pending migration and return its name; None if no migration is pending."""
    with connection.transaction():
        _prepare(connection)
        applied: dict[str, str] = dict(connection.execute(_SELECT_MIGRATIONS).fetchall())
        _check_history(applied, migrations)
        pending = next((migration for migration in migrations if migration.name not in applied), None)
        if pending is None:
            return None
        logger.info("applying migration", migration=pending.name)
        _execute(connection, pending)
        connection.execute(_RECORD_MIGRATION, (pending.name, pending.checksum))
        # The migration may have dropped a function, so apply all of them again.
        connection.execute(_DELETE_FUNCTIONS)
    return pending.name


def _apply_functions(connection: Connection, functions: Sequence[SqlFile]) -> list[str]:
    """Apply all functions in one transaction if any of them changed; return the names of the applied files."""
    checksums = {function.name: function.checksum for function in functions}
    with connection.transaction():
        _prepare(connection)
        applied: dict[str, str] = dict(connection.execute(_SELECT_FUNCTIONS).fetchall())
        if applied == checksums:
            return []
        changed = sorted(name for name, _ in applied.items() ^ checksums.items())
        logger.info("applying SQL functions", changed=list(dict.fromkeys(changed)))
        for function in functions:
            _execute(connection, function)
        connection.execute(_DELETE_FUNCTIONS)
        connection.execute(_RECORD_FUNCTIONS, {"names": list(checksums), "checksums": list(checksums.values())})
    return list(checksums)


def _prepare(connection: Connection) -> None:
    """Take the lock, create the tables that store the applied files, and set the lock timeout."""
    connection.execute(_TAKE_LOCK)
    connection.execute(_CREATE_TABLES, prepare=False)
    connection.execute(_SET_LOCK_TIMEOUT)


def _execute(connection: Connection, file: SqlFile) -> None:
    try:
        connection.execute(file.sql, prepare=False)  # a file has several statements
    except psycopg.Error as error:
        raise InternalError(f"migration {file.name} failed and was rolled back: {error}") from error


def _check_history(applied: Mapping[str, str], migrations: Sequence[SqlFile]) -> None:
    """Raise InternalError if the applied migrations do not match the files."""
    if _FIRST_BEFORE_BASELINE in applied:
        raise InternalError(
            "this database was made before the migrations became one baseline and cannot be upgraded: start with an"
            " empty database. On the local stack run `make clean`, which deletes everything under .grantwire: the"
            " database with its entitlements and clients, the event streams, logs and tools. Then run `make up`."
        )
    files = {migration.name: migration.checksum for migration in migrations}
    if missing := sorted(applied.keys() - files.keys()):
        raise InternalError(f"applied to the database, but its file is missing: {', '.join(missing)}")
    if edited := sorted(name for name in applied if applied[name] != files[name]):
        raise InternalError(
            f"edited after it was applied: {', '.join(edited)}; restore it and write a new migration instead"
        )
    if late := [name for name in files if name not in applied and name < _last_applied(applied, name)]:
        raise InternalError(
            f"its number is lower than that of an applied migration: {', '.join(late)}; give it the next number"
        )


def _last_applied(applied: Iterable[str], name: str) -> str:
    """Return the last applied migration with the same prefix as `name`: library and service have their own numbers."""
    prefix = name.rpartition("/")[0]
    return max((other for other in applied if other.rpartition("/")[0] == prefix), default="")


def _sql_files(directory: Traversable) -> dict[str, bytes]:
    """Return the content of each SQL file by name, sorted by name."""
    files = {file.name: file for file in directory.iterdir() if file.name.endswith(".sql")}
    return {name: files[name].read_bytes() for name in sorted(files)}
