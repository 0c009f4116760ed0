"""The command line: `schema` prints or applies the tables and functions, `cleanup` deletes what has expired."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.postgres import schema
from grantwire_idempotency._internal.stores.expired import SqliteExpiredRows
from grantwire_idempotency._internal.stores.interface import CLEANUP_BATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grantwire_idempotency._internal.stores.expired import ExpiredRows

_EXAMPLES = """\
examples:
  python -m grantwire_idempotency schema                          print everything as one script
  python -m grantwire_idempotency schema --after 1                print what version 1 does not have
  python -m grantwire_idempotency schema --apply                  apply to the database of DATABASE_URL
  python -m grantwire_idempotency schema --apply --role app       and let the role app use it
  python -m grantwire_idempotency cleanup                         delete expired rows there
  python -m grantwire_idempotency cleanup --dry-run               count them
  python -m grantwire_idempotency cleanup --batches 50            delete at most 50,000 rows of each table
  python -m grantwire_idempotency cleanup --sqlite keys.db        delete those of a SqliteStore

exit codes: 0 done, 1 failed, 2 wrong arguments
"""
# How many batches of a table one line of progress stands for.
_BATCHES_PER_LINE = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = _command_line()
    options = parser.parse_args(arguments)
    database = options.database or os.environ.get("DATABASE_URL")  # noqa: TID251 - a command line
    if options.command == "cleanup":
        if not options.sqlite and not database:
            parser.error("cleanup needs --database, --sqlite or the variable DATABASE_URL")
        return _report_errors("could not clean up", lambda: _clean_up(options, database))
    if not options.apply:
        sys.stdout.write(schema.script(options.after, options.role))
        return 0
    if not database:
        parser.error("--apply needs --database or the variable DATABASE_URL")
    return _report_errors("could not apply the schema", lambda: _apply(database, options.role))


class _Parser(argparse.ArgumentParser):
    """A parser with the examples, also for each command."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, **options)


def _command_line() -> argparse.ArgumentParser:
    parser = _Parser("python -m grantwire_idempotency")
    commands = parser.add_subparsers(dest="command", required=True)
    schema_command = commands.add_parser("schema", help="print or apply the tables and functions in PostgreSQL")
    schema_command.add_argument("--apply", action="store_true", help="apply to a database instead of printing")
    schema_command.add_argument(
        "--after", type=int, default=0, metavar="N", help="print only upgrades with a higher number"
    )
    schema_command.add_argument("--role", action="append", default=[], help="a role that uses the tables; repeatable")
    cleanup_command = commands.add_parser("cleanup", help="delete rows that have expired")
    cleanup_command.add_argument("--sqlite", metavar="FILE", help="the file of a SqliteStore, instead of a database")
    cleanup_command.add_argument("--dry-run", action="store_true", help="count the rows and delete none")
    cleanup_command.add_argument(
        "--batches", type=_positive, metavar="N", help=f"stop after N batches of {CLEANUP_BATCH:,} rows of a table"
    )
    for command in (schema_command, cleanup_command):
        command.add_argument("--database", metavar="DSN", help="the database; default: the variable DATABASE_URL")
    return parser


def _report_errors(failure: str, command: Callable[[], None]) -> int:
    try:
        command()
    except Exception as error:  # noqa: BLE001 - of the library, or of the driver: unreachable, no privilege
        sys.stderr.write(f"{failure}: {error}\n")
        return 1
    return 0


def _apply(dsn: str, roles: Sequence[str]) -> None:
    applied = schema.apply(dsn, roles)
    for name in applied:
        sys.stdout.write(f"applied {name}\n")
    sys.stdout.write("the schema is up to date\n" if not applied else f"{len(applied)} files applied\n")


def _clean_up(options: argparse.Namespace, dsn: str | None) -> None:
    with closing(SqliteExpiredRows(options.sqlite) if options.sqlite else _open_postgres(dsn)) as rows:
        if options.dry_run:
            for table, count in zip(rows.tables, rows.count(), strict=True):
                sys.stdout.write(f"{table}: {count:,} expired\n")
            return
        for table in rows.tables:
            sys.stdout.write(f"{table}: {_delete(rows, table, options.batches)}\n")


def _open_postgres(dsn: str | None) -> ExpiredRows:
    from grantwire_idempotency._internal.stores.postgres_expired import PostgresExpiredRows  # noqa: PLC0415 - psycopg

    return PostgresExpiredRows(dsn or "")


def _delete(rows: ExpiredRows, table: str, batches: int | None) -> str:
    """Delete the expired rows of a table, each batch in its own transaction, and return a description of the result."""
    deleted = count = 0
    while batches is None or count < batches:
        count += 1
        batch = rows.delete_batch(table)
        deleted += batch
        if batch < CLEANUP_BATCH:
            return f"{deleted:,} deleted"
        if count % _BATCHES_PER_LINE == 0:
            sys.stderr.write(f"{table}: {deleted:,} deleted so far\n")
    return f"{deleted:,} deleted, more may be left"


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
