"""The schema, made from SQL files: numbered files once each and in order, then every SQL function.

Numbered files are forward-only: tables, indexes, views, roles and privileges. Each is applied in a transaction of its
own, the tables of the idempotency library first. `schema_migrations` keeps the name and checksum of each. A file that
changed after it was applied, or one that disappeared, stops everything: the database would no longer be what the files
say.

Functions have one file each, which is edited in place. All of them are applied in one transaction, in the order that
`order.txt` lists, followed by `after_functions.sql`, when the checksum of any of these files changed or a numbered file
was applied. `schema_functions` keeps their names and checksums.

Runs that overlap take turns, under a lock that ends with each transaction.
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
# How files of the library are named in the database: their numbers are their own.
_LIBRARY_PREFIX = "idempotency/"

_FILE_NAME = re.compile(r"\d{4}_[a-z0-9_]+\.sql")

# The first file of every database from before the numbered files were written anew as one baseline.
_FIRST_BEFORE_BASELINE = "0001_idempotency_keys.sql"

# A migration that waits for a lock makes everybody else wait behind it: better to fail and to be run again.
_LIMIT_WAITING = "SET LOCAL lock_timeout = '5s'"

# ASCII "gwmigrat": any number will do that nobody else uses.
_LOCK = "SELECT pg_advisory_xact_lock(x'67776d6967726174'::bigint)"

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

_FORGET_FUNCTIONS = "DELETE FROM schema_functions"

_RECORD_FUNCTIONS = """
INSERT INTO schema_functions (name, checksum) SELECT * FROM unnest(%(names)s::text[], %(checksums)s::text[])
"""

_FORGET_AUDIT_RETENTION = "DELETE FROM audit_retention"

_SET_AUDIT_RETENTION = """
INSERT INTO audit_retention (keep_months) VALUES (%s)
ON CONFLICT (single) DO UPDATE SET keep_months = EXCLUDED.keep_months
"""


@dataclass(frozen=True, slots=True)
class SqlFile:
    """One file, under the name that the database keeps."""

    name: str
    sql: bytes

    @property
    def checksum(self) -> str:
        """What the database keeps of the content."""
        return hashlib.sha256(self.sql).hexdigest()


@dataclass(frozen=True, slots=True)
class Schema:
    """All files in the order in which they are applied; the last of `functions` is `after_functions.sql`."""

    migrations: tuple[SqlFile, ...]
    functions: tuple[SqlFile, ...]


def read_schema(migrations: Traversable, sql: Traversable) -> Schema:
    """Read the service's numbered files and its folder `infra/sql`, and before them the library's own of both."""
    library = resources.files(_LIBRARY).joinpath("sql")
    return Schema(
        (*read_numbered(library.joinpath("tables"), _LIBRARY_PREFIX), *read_numbered(migrations)),
        (
            *read_functions(library.joinpath("functions"), _LIBRARY_PREFIX),
            *read_functions(sql.joinpath("functions")),
            SqlFile("after_functions.sql", sql.joinpath("after_functions.sql").read_bytes()),
        ),
    )


def read_numbered(directory: Traversable, prefix: str = "") -> list[SqlFile]:
    """Read numbered files in the order of their numbers, which must be unique."""
    files = _sql_files(directory)
    if not files:
        raise InternalError(f"no migrations in {directory}")
    if bad := [name for name in files if not _FILE_NAME.fullmatch(name)]:
        raise InternalError(f"not named like 0001_what_it_does.sql: {', '.join(bad)}")
    numbers = [name[:4] for name in files]
    if twice := {number for number in numbers if numbers.count(number) > 1}:
        raise InternalError(f"numbers used twice: {', '.join(sorted(twice))}")
    return [SqlFile(prefix + name, content) for name, content in files.items()]


def read_functions(directory: Traversable, prefix: str = "") -> list[SqlFile]:
    """Read the functions' files in the order of `order.txt`, which must name each of them once."""
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
    """Apply what is missing; the names of the applied files.

    A failure is an InternalError that names the file. It leaves the numbered files before it in place, and all
    functions as they were.
    """
    applied = []
    while (name := _apply_next(connection, schema.migrations)) is not None:
        applied.append(name)
    return applied + _apply_functions(connection, schema.functions)


def limit_audit_retention(connection: Connection, months: int | None) -> None:
    """Let the functions drop months of the audit that are older than so many, or none at all.

    Only the owner can say so: whoever has merely the functions' rights cannot shorten the audit's memory.
    """
    if months is None:
        connection.execute(_FORGET_AUDIT_RETENTION)
    else:
        connection.execute(_SET_AUDIT_RETENTION, (months,))


def _apply_next(connection: Connection, migrations: Sequence[SqlFile]) -> str | None:
    """Apply the first numbered file that is missing; None if none is."""
    with connection.transaction():
        _begin(connection)
        known: dict[str, str] = dict(connection.execute(_SELECT_MIGRATIONS).fetchall())
        _compare(known, migrations)
        pending = next((migration for migration in migrations if migration.name not in known), None)
        if pending is None:
            return None
        logger.info("applying migration", migration=pending.name)
        _execute(connection, pending)
        connection.execute(_RECORD_MIGRATION, (pending.name, pending.checksum))
        # It may have dropped a function, to change what the function depends on.
        connection.execute(_FORGET_FUNCTIONS)
    return pending.name


def _apply_functions(connection: Connection, functions: Sequence[SqlFile]) -> list[str]:
    """Apply all functions if any of them changed, in one transaction; the names of the applied files."""
    wanted = {function.name: function.checksum for function in functions}
    with connection.transaction():
        _begin(connection)
        known: dict[str, str] = dict(connection.execute(_SELECT_FUNCTIONS).fetchall())
        if known == wanted:
            return []
        changed = sorted(name for name, _ in known.items() ^ wanted.items())
        logger.info("applying SQL functions", changed=list(dict.fromkeys(changed)))
        for function in functions:
            _execute(connection, function)
        connection.execute(_FORGET_FUNCTIONS)
        connection.execute(_RECORD_FUNCTIONS, {"names": list(wanted), "checksums": list(wanted.values())})
    return list(wanted)


def _begin(connection: Connection) -> None:
    """Wait for our turn, and make sure of the tables that keep what was applied."""
    connection.execute(_LOCK)
    connection.execute(_CREATE_TABLES, prepare=False)
    connection.execute(_LIMIT_WAITING)


def _execute(connection: Connection, file: SqlFile) -> None:
    try:
        connection.execute(file.sql, prepare=False)  # a prepared statement holds only one
    except psycopg.Error as error:
        raise InternalError(f"migration {file.name} failed and was rolled back: {error}") from error


def _compare(known: Mapping[str, str], migrations: Sequence[SqlFile]) -> None:
    """Refuse a database that the files did not make."""
    if _FIRST_BEFORE_BASELINE in known:
        raise InternalError(
            "this database was made before the migrations became one baseline, and cannot be brought up to it: start"
            " with an empty database. On the local stack run `make clean`, which deletes everything under .grantwire:"
            " the database with its entitlements and clients, the event streams, logs and tools. Then run `make up`."
        )
    files = {migration.name: migration.checksum for migration in migrations}
    if missing := sorted(known.keys() - files.keys()):
        raise InternalError(f"applied to the database, but the file is gone: {', '.join(missing)}")
    if edited := sorted(name for name in known if known[name] != files[name]):
        raise InternalError(
            f"edited after it was applied: {', '.join(edited)}; restore it and write a new migration instead"
        )
    if late := [name for name in files if name not in known and name < _last(known, name)]:
        raise InternalError(f"numbered before one that is applied: {', '.join(late)}; give it the next number")


def _last(known: Iterable[str], name: str) -> str:
    """The last applied file of the series of `name`: the library's numbers and the service's are independent."""
    series = name.rpartition("/")[0]
    return max((other for other in known if other.rpartition("/")[0] == series), default="")


def _sql_files(directory: Traversable) -> dict[str, bytes]:
    """The content of each SQL file by its name, sorted by name."""
    files = {file.name: file for file in directory.iterdir() if file.name.endswith(".sql")}
    return {name: files[name].read_bytes() for name in sorted(files)}
