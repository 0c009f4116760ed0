"""Forward-only migrations: numbered SQL files, each applied once, in order, in a transaction of its own.

`schema_migrations` keeps the name and checksum of each. A file that changed after it was applied, or one that
disappeared, stops everything: the database would no longer be what the files say. Runs that overlap take turns, under a
lock that ends with each transaction.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from grantwire.errors import InternalError
from grantwire.observability import log

if TYPE_CHECKING:
    from pathlib import Path

    Connection = psycopg.Connection[tuple[Any, ...]]

_FILE_NAME = re.compile(r"\d{4}_[a-z0-9_]+\.sql")

# A migration that waits for a lock makes everybody else wait behind it: better to fail and to be run again.
_LIMIT_WAITING = "SET LOCAL lock_timeout = '5s'"

# ASCII "gwmigrat": any number will do that nobody else uses.
_LOCK = "SELECT pg_advisory_xact_lock(x'67776d6967726174'::bigint)"

_CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    name       text        PRIMARY KEY,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""

_SELECT_APPLIED = "SELECT name, checksum FROM schema_migrations"

_RECORD = "INSERT INTO schema_migrations (name, checksum) VALUES (%s, %s)"

_FORGET_AUDIT_RETENTION = "DELETE FROM audit_retention"

_SET_AUDIT_RETENTION = """
INSERT INTO audit_retention (keep_months) VALUES (%s)
ON CONFLICT (single) DO UPDATE SET keep_months = EXCLUDED.keep_months
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file."""

    name: str
    sql: bytes

    @property
    def checksum(self) -> str:
        """What the database remembers of the file."""
        return hashlib.sha256(self.sql).hexdigest()


def read_migrations(directory: Path) -> list[Migration]:
    """Every migration in the order of its number, which must be unique."""
    files = sorted(directory.glob("*.sql"))
    if not files:
        raise InternalError(f"no migrations in {directory}")
    if bad := [file.name for file in files if not _FILE_NAME.fullmatch(file.name)]:
        raise InternalError(f"not named like 0001_what_it_does.sql: {', '.join(bad)}")
    numbers = [file.name[:4] for file in files]
    if twice := {number for number in numbers if numbers.count(number) > 1}:
        raise InternalError(f"numbers used twice: {', '.join(sorted(twice))}")
    return [Migration(file.name, file.read_bytes()) for file in files]


def apply(connection: Connection, migrations: list[Migration]) -> list[str]:
    """Apply what is missing, one transaction each; a failure leaves the ones before it in place."""
    applied = []
    while (name := _apply_next(connection, migrations)) is not None:
        applied.append(name)
    return applied


def limit_audit_retention(connection: Connection, months: int | None) -> None:
    """Let the functions drop months of the audit that are older than so many, or none at all.

    Only the owner can say so: whoever has merely the functions' rights cannot shorten the audit's memory.
    """
    if months is None:
        connection.execute(_FORGET_AUDIT_RETENTION)
    else:
        connection.execute(_SET_AUDIT_RETENTION, (months,))


def _apply_next(connection: Connection, migrations: list[Migration]) -> str | None:
    with connection.transaction():
        connection.execute(_LOCK)
        connection.execute(_CREATE_TABLE)
        known: dict[str, str] = dict(connection.execute(_SELECT_APPLIED).fetchall())
        _compare(known, migrations)
        pending = next((migration for migration in migrations if migration.name not in known), None)
        if pending is None:
            return None
        log.info("applying migration", migration=pending.name)
        connection.execute(_LIMIT_WAITING)
        try:
            connection.execute(pending.sql, prepare=False)  # a prepared statement holds only one
        except psycopg.Error as error:
            raise InternalError(f"migration {pending.name} failed and was rolled back: {error}") from error
        connection.execute(_RECORD, (pending.name, pending.checksum))
    return pending.name


def _compare(known: dict[str, str], migrations: list[Migration]) -> None:
    files = {migration.name: migration.checksum for migration in migrations}
    if missing := sorted(known.keys() - files.keys()):
        raise InternalError(f"applied to the database, but the file is gone: {', '.join(missing)}")
    if edited := sorted(name for name in known if known[name] != files[name]):
        raise InternalError(
            f"edited after it was applied: {', '.join(edited)}; restore it and write a new migration instead"
        )
    if known and (late := [name for name in files if name not in known and name < max(known)]):
        raise InternalError(f"numbered before one that is applied: {', '.join(late)}; give it the next number")
