"""The command line: `python -m grantwire_idempotency schema` prints or applies the tables and functions."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from grantwire_idempotency._internal.postgres import schema
from grantwire_idempotency.errors import GrantwireError

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXAMPLES = """\
examples:
  python -m grantwire_idempotency schema                          print everything as one script
  python -m grantwire_idempotency schema --after 1                print what version 1 does not have
  python -m grantwire_idempotency schema --apply                  apply to the database of DATABASE_URL
  python -m grantwire_idempotency schema --apply --role app       and let the role app use it

exit codes: 0 done, 1 failed, 2 wrong arguments
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(
        "python -m grantwire_idempotency", epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command = parser.add_subparsers(required=True).add_parser(
        "schema",
        help="print or apply the tables and functions in PostgreSQL",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--apply", action="store_true", help="apply to a database instead of printing")
    command.add_argument("--dsn", help="the database; default: the variable DATABASE_URL")
    command.add_argument("--after", type=int, default=0, metavar="N", help="print only upgrades with a higher number")
    command.add_argument("--role", action="append", default=[], help="a role that uses the tables; repeatable")
    options = parser.parse_args(arguments)
    if not options.apply:
        sys.stdout.write(schema.script(options.after, options.role))
        return 0
    dsn = options.dsn or os.environ.get("DATABASE_URL")  # noqa: TID251 - a command line
    if not dsn:
        parser.error("--apply needs --dsn or the variable DATABASE_URL")
    return _apply(dsn, options.role)


def _apply(dsn: str, roles: Sequence[str]) -> int:
    try:
        applied = schema.apply(dsn, roles)
    except (GrantwireError, ImportError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except Exception as error:  # noqa: BLE001 - of the driver: unreachable, no privilege
        sys.stderr.write(f"could not apply the schema: {error}\n")
        return 1
    for name in applied:
        sys.stdout.write(f"applied {name}\n")
    sys.stdout.write("the schema is up to date\n" if not applied else f"{len(applied)} files applied\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
