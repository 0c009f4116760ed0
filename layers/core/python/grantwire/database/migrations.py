"""Applies the database schema from SQL files: the baseline, then numbered migrations, then all functions and views.

The baseline is the schema of release 1.0.0: roles, and the tables, indexes and privileges of each capability. It is
edited in place until that release. Migrations are numbered, forward-only files that change what exists since. Each file
of both is applied once, in its own transaction, the tables of the idempotency library first. `schema_migrations` has
their names and checksums. If an applied file was changed or is missing, nothing is applied, because the database would
no longer match the files.

Functions, views and triggers are definitions: each has its own file, which is edited in place. All of them are applied
in one transaction if one of these files changed or a migration was applied. `schema_definitions` has their names and
checksums.

Concurrent runs wait for each other, with an advisory lock for each transaction.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
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
# The prefix of the library's files in the database: the library has its own baseline and its own numbers.
_LIBRARY_PREFIX = "idempotency/"

_MIGRATION_FILE_NAME = re.compile(r"\d{4}_[a-z0-9_]+\.sql")

# How the names of the baseline's files begin.
_FIRST = "roles.sql"
_BASELINE = (_FIRST, "tables/", f"{_LIBRARY_PREFIX}0001_")

# A function or view that exists with other arguments, another result or other columns cannot be replaced.
_SIGNATURE_CHANGED = frozenset({"42P13", "42725", "42P16", "42723"})
_SIGNATURE_HINT = (
    "\nIts arguments, result or columns have changed: drop the old one in a numbered migration. Before release 1.0.0,"
    " start with an empty database instead (local stack: `make clean`, then `make up`)."
)

# While a migration waits for a lock, all later statements on the table wait behind it: fail instead, and run it again.
_SET_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '5s'"

# The id is ASCII "gwmigrat".
_TAKE_LOCK = "SELECT pg_advisory_xact_lock(x'67776d6967726174'::bigint)"

_CREATE_TABLES = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    name       text        COLLATE "C" PRIMARY KEY,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS schema_definitions (
    name       text        COLLATE "C" PRIMARY KEY,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""

_SELECT_MIGRATIONS = "SELECT name, checksum FROM schema_migrations"

_RECORD_MIGRATION = "INSERT INTO schema_migrations (name, checksum) VALUES (%s, %s)"

_SELECT_DEFINITIONS = "SELECT name, checksum FROM schema_definitions"

_DELETE_DEFINITIONS = "DELETE FROM schema_definitions"

_RECORD_DEFINITIONS = """
INSERT INTO schema_definitions (name, checksum) SELECT * FROM unnest(%(names)s::text[], %(checksums)s::text[])
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

    @property
    def is_baseline(self) -> bool:
        """Whether the file belongs to the baseline, which is edited in place until release 1.0.0."""
        return self.name.startswith(_BASELINE)


@dataclass(frozen=True, slots=True)
class Schema:
    """All SQL files in the order in which they are applied; `migrations` begins with the baseline."""

    migrations: tuple[SqlFile, ...]
    functions: tuple[SqlFile, ...] = ()
    views: tuple[SqlFile, ...] = ()

    @property
    def definitions(self) -> tuple[SqlFile, ...]:
        """The files that are all applied again when one of them has changed: functions, views and triggers."""
        return (*self.functions, *self.views)

    @property
    def version(self) -> str:
        """The version of the schema, as the SQL function operations_status computes it from the applied files."""
        numbers = [file.name[:4] for file in self.migrations if _MIGRATION_FILE_NAME.fullmatch(file.name)]
        lines = sorted(f"{file.name} {file.checksum}" for file in (*self.migrations, *self.definitions))
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        return f"{max(numbers, default='baseline')}-{digest[:12]}"


@cache
def read_schema() -> Schema:
    """Read the SQL files of this build, those of the idempotency library first."""
    return read_schema_from(resources.files(__package__).joinpath("sql"))


def read_schema_from(sql: Traversable) -> Schema:
    """Read the files of the idempotency library, and those of the service in the folder `sql`."""
    library = resources.files(_LIBRARY).joinpath("sql")
    migrations = _read_files(sql.joinpath("migrations"))
    if invalid := [file.name for file in migrations if not _MIGRATION_FILE_NAME.fullmatch(file.name)]:
        raise InternalError(f"not named like 0001_what_it_does.sql: {', '.join(invalid)}")
    numbers = [file.name[:4] for file in migrations]
    if duplicates := {number for number in numbers if numbers.count(number) > 1}:
        raise InternalError(f"migration numbers used twice: {', '.join(sorted(duplicates))}")
    return Schema(
        (
            *_read_files(library.joinpath("tables"), _LIBRARY_PREFIX),
            SqlFile(_FIRST, sql.joinpath(_FIRST).read_bytes()),
            *_read_files(sql.joinpath("tables"), "tables/"),
            *migrations,
        ),
        (
            *_read_files(library.joinpath("functions"), f"{_LIBRARY_PREFIX}functions/"),
            *(
                file
                for folder in sorted(sql.joinpath("functions").iterdir(), key=lambda entry: entry.name)
                if folder.is_dir()
                for file in _read_files(folder, f"functions/{folder.name}/")
            ),
        ),
        (
            *_read_files(sql.joinpath("views"), "views/"),
            SqlFile("triggers.sql", sql.joinpath("triggers.sql").read_bytes()),
        ),
    )


def apply(connection: Connection, schema: Schema) -> list[str]:
    """Apply the pending migrations and the changed definitions; return the names of the applied files.

    Raises InternalError, which names the file, if one fails. Migrations before it stay applied; definitions are
    unchanged until all of them succeed.
    """
    applied = []
    while (name := _apply_next(connection, schema.migrations)) is not None:
        applied.append(name)
    return applied + _apply_definitions(connection, schema)


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
        # The migration may have dropped a function or a view, so apply all of them again.
        connection.execute(_DELETE_DEFINITIONS)
    return pending.name


def _apply_definitions(connection: Connection, schema: Schema) -> list[str]:
    """Apply all definitions in one transaction if any of them changed; return the names of the applied files."""
    checksums = {file.name: file.checksum for file in schema.definitions}
    with connection.transaction():
        _prepare(connection)
        applied: dict[str, str] = dict(connection.execute(_SELECT_DEFINITIONS).fetchall())
        if applied == checksums:
            return []
        changed = sorted(name for name, _ in applied.items() ^ checksums.items())
        logger.info("applying SQL definitions", changed=list(dict.fromkeys(changed)))
        # A function can be created before what it uses. Its body is checked when all of them exist.
        connection.execute("SET LOCAL check_function_bodies = off")
        for file in schema.definitions:
            _execute(connection, file)
        connection.execute("SET LOCAL check_function_bodies = on")
        for file in schema.functions:
            _execute(connection, file)
        connection.execute(_DELETE_DEFINITIONS)
        connection.execute(_RECORD_DEFINITIONS, {"names": list(checksums), "checksums": list(checksums.values())})
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
        hint = _SIGNATURE_HINT if error.sqlstate in _SIGNATURE_CHANGED else ""
        raise InternalError(f"{file.name} failed and was rolled back: {error}{hint}") from error


def _check_history(applied: Mapping[str, str], migrations: Sequence[SqlFile]) -> None:
    """Raise InternalError if the applied migrations do not match the files."""
    files = {file.name: file.checksum for file in migrations}
    missing = {name for name in applied if name not in files}
    edited = {name for name in applied if name in files and applied[name] != files[name]}
    is_complete = not missing or _FIRST in applied
    if not is_complete or any(name.startswith(_BASELINE) for name in missing | edited):
        raise InternalError(
            "this database was made from another baseline of the schema and was not changed"
            f" (different: {_summarize(missing | edited)}): start with an empty database; on the local stack,"
            " `make clean` deletes this one with everything else under .grantwire, and `make up` creates a new one"
        )
    if missing:
        raise InternalError(f"applied to the database, but its file is missing: {', '.join(sorted(missing))}")
    if edited:
        raise InternalError(
            f"edited after it was applied: {', '.join(sorted(edited))}; restore it and write a new migration instead"
        )
    if late := [name for name in files if name not in applied and name < _last_applied(applied, name)]:
        raise InternalError(
            f"its number is lower than that of an applied migration: {', '.join(late)}; give it the next number"
        )


def _summarize(names: Iterable[str]) -> str:
    first, *others = sorted(names)
    return f"{first} and {len(others)} more" if others else first


def _last_applied(applied: Iterable[str], name: str) -> str:
    """Return the last applied migration with the same prefix as `name`: library and service have their own numbers.

    Files of the baseline have no order.
    """
    prefix = name.rpartition("/")[0]
    numbered = (other for other in applied if not other.startswith(_BASELINE) and other.rpartition("/")[0] == prefix)
    return "" if name.startswith(_BASELINE) else max(numbered, default="")


def _read_files(folder: Traversable, prefix: str = "") -> list[SqlFile]:
    """Read the SQL files of a folder, sorted by name."""
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [SqlFile(prefix + file.name, file.read_bytes()) for file in files]
