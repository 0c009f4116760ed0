"""Checks of PostgreSQL: version, schema, privileges, settings and clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire_cli.checks.findings import Finding, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from psycopg import Connection

CHECK = "PostgreSQL"
OLDEST, NEWEST = 15, 18
MAX_SKEW_SECONDS = 1.0
FEW_CONNECTIONS = 0.2
LONG_TRANSACTION_SECONDS = 60  # from then on the status names it, too

_SETTINGS = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"

_CONNECTIONS = """
SELECT current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer,
       (SELECT sum(numbackends) FROM pg_stat_database)
"""

_SCHEMA = """
SELECT 'schema_migrations', name, checksum FROM schema_migrations
UNION ALL
SELECT 'schema_definitions', name, checksum FROM schema_definitions
"""

# What the functions' role must and must not have; tests/integration/test_roles.py has the complete list.
_PRIVILEGES = """
SELECT role.rolsuper OR role.rolcreaterole OR role.rolcreatedb OR role.rolbypassrls,
       has_table_privilege(role.oid, 'entitlements', 'SELECT'),
       has_table_privilege(role.oid, 'outbox_events', 'SELECT'),
       has_table_privilege(role.oid, 'entitlement_audit', 'SELECT')
           OR has_schema_privilege(role.oid, current_schema(), 'CREATE')
  FROM pg_roles role WHERE role.rolname = 'grantwire_functions'
"""

# PostgreSQL shows the transactions of other logins only to members of pg_read_all_stats. The SQL function
# settled_through reads them with the privileges of the schema owner.
_SEES_SESSIONS = """
SELECT coalesce(pg_get_userbyid(p.proowner), current_user),
       pg_has_role(coalesce(p.proowner::regrole, current_user::regrole), 'pg_read_all_stats', 'USAGE')
  FROM (SELECT to_regproc('oldest_writing_transaction_of_all') AS oid) AS f LEFT JOIN pg_proc p USING (oid)
"""

# Also of sessions that are idle in their transaction.
_LONG_TRANSACTIONS = """
SELECT pid, usename, extract(epoch FROM clock_timestamp() - xact_start)::integer
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
   AND xact_start < clock_timestamp() - make_interval(secs => %s)
 ORDER BY xact_start LIMIT 5
"""


class Rule(NamedTuple):
    """The values that a setting may have, whether another one is a problem, and why."""

    allowed: tuple[str, ...]
    is_problem: bool
    reason: str


RULES: Mapping[str, Rule] = {
    "fsync": Rule(("on",), True, "a crash of the machine can lose or damage committed changes"),
    "full_page_writes": Rule(("on",), True, "a crash of the machine can damage the database"),
    "synchronous_commit": Rule(
        ("on", "local", "remote_write", "remote_apply"), True, "a crash can lose changes that callers were told of"
    ),
    "default_transaction_isolation": Rule(
        ("read committed",), True, "the SQL functions are written for READ COMMITTED"
    ),
    "default_transaction_read_only": Rule(("off",), True, "no change can be written"),
    "server_encoding": Rule(("UTF8",), True, "names of users and items are Unicode"),
    "track_activities": Rule(("on",), False, "status cannot show what sessions do"),
}


def check_postgres(connection: Connection[Any], *, migrate: str, connections: int = 0) -> Iterator[Finding]:
    """Yield the findings about a database, as its owner sees it; `migrate` is the command that migrates it.

    `connections` is how many a planned deployment can open in addition; 0 if there is none.
    """
    yield _check_clock(connection)
    major = connection.info.server_version // 10000
    if OLDEST <= major <= NEWEST:
        yield ok(CHECK, f"PostgreSQL {major}")
    else:
        yield problem(CHECK, f"PostgreSQL {major} is not supported", f"use PostgreSQL {OLDEST} to {NEWEST}")
    yield from _check_settings(connection)
    yield _check_connections(connection, connections)
    yield from _check_schema(connection, migrate)
    yield from _check_transactions(connection)


def _check_clock(connection: Connection[Any]) -> Finding:
    """Compare the clocks at the middle of a round trip."""
    before = time.time()
    ((remote,),) = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchall()
    after = time.time()
    skew = (before + after) / 2 - remote
    if abs(skew) > MAX_SKEW_SECONDS + (after - before) / 2:
        message = f"this machine's clock differs from the database's by {skew:.1f} s"
        return warning("clock", message, "synchronise both clocks, for example: sudo timedatectl set-ntp true")
    return ok("clock", f"this machine's clock agrees with the database's ({skew * 1000:.0f} ms)")


def _check_settings(connection: Connection[Any]) -> Iterator[Finding]:
    found: dict[str, str] = dict(connection.execute(_SETTINGS, [list(RULES)]).fetchall())
    wrong = {name: value for name, value in found.items() if value not in RULES[name].allowed}
    for name, value in wrong.items():
        rule = RULES[name]
        finding = problem if rule.is_problem else warning
        repair = f"ALTER SYSTEM SET {name} = '{rule.allowed[0]}'; SELECT pg_reload_conf();"
        yield finding(CHECK, f"{name} is {value}: {rule.reason}", repair)
    if not wrong:
        yield ok(CHECK, f"{len(found)} settings are safe: {', '.join(found)}")


def _check_connections(connection: Connection[Any], needed: int) -> Finding:
    ((limit, used),) = connection.execute(_CONNECTIONS).fetchall()
    if needed > limit - used:
        message = f"the deployment can open {needed} connections, and {limit - used} of {limit} are free"
        return problem(CHECK, message, "raise max_connections, or lower ApiConcurrency")
    text = f"{used} of {limit} connections are used"
    if limit - used < limit * FEW_CONNECTIONS:
        return warning(CHECK, text, "raise max_connections, or lower the concurrency of the functions")
    return ok(CHECK, text)


def _check_transactions(connection: Connection[Any]) -> Iterator[Finding]:
    """Yield a finding for each transaction that is open for long, and one if those of other logins cannot be seen."""
    ((owner, sees_all),) = connection.execute(_SEES_SESSIONS).fetchall()
    if not sees_all:
        message = (
            f"{owner} cannot see the transactions of other logins: the status may say that a change has arrived which"
            " one of them has not committed"
        )
        yield warning(CHECK, message, f"GRANT pg_read_all_stats TO {owner}")
    for pid, owner, seconds in connection.execute(_LONG_TRANSACTIONS, [LONG_TRANSACTION_SECONDS]).fetchall():
        message = f"a transaction of {owner} has been open for {seconds} s; it holds back the change feed and vacuum"
        yield warning(CHECK, message, f"find out what it does; then SELECT pg_terminate_backend({pid})")


def _check_schema(connection: Connection[Any], migrate: str) -> Iterator[Finding]:
    """Compare the applied migrations and functions with the files of this checkout, then the privileges."""
    from grantwire.database.migrations import read_schema  # noqa: PLC0415  # importable only with the layer

    ((exists,),) = connection.execute("SELECT to_regclass('schema_definitions') IS NOT NULL").fetchall()
    if not exists:
        yield problem("schema", "the database has no schema", migrate)
        return
    schema = read_schema()
    applied = {(kind, name): checksum for kind, name, checksum in connection.execute(_SCHEMA).fetchall()}
    files = {("schema_migrations", file.name): file.checksum for file in schema.migrations}
    files |= {("schema_definitions", file.name): file.checksum for file in schema.definitions}
    missing = sorted(name for kind, name in files if (kind, name) not in applied)
    changed = sorted(
        name for kind, name in files if applied.get((kind, name), files[(kind, name)]) != files[(kind, name)]
    )
    newer = sorted(name for kind, name in applied if (kind, name) not in files)
    for title, names in (("not applied", missing), ("applied with other content", changed)):
        if names:
            yield problem("schema", f"{title}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}", migrate)  # noqa: PLR2004
    if newer:
        message = f"the database has {', '.join(newer[:5])}, which this checkout lacks"
        yield warning("schema", message, "use the checkout of the release that is deployed")
    if not missing and not changed:
        yield ok("schema", f"{len(files)} SQL files are applied, version {schema.version}")
    yield from _check_privileges(connection, migrate)


def _check_privileges(connection: Connection[Any], migrate: str) -> Iterator[Finding]:
    rows = connection.execute(_PRIVILEGES).fetchall()
    if not rows:
        yield problem("privileges", "the role grantwire_functions does not exist", "see docs/deploy.md#postgresql")
        return
    ((powerful, *needed, excessive),) = rows
    if not all(needed):
        yield problem("privileges", "grantwire_functions lacks privileges that the functions need", migrate)
    if powerful or excessive:
        message = "grantwire_functions has more privileges than the functions need"
        yield problem("privileges", message, "see docs/deploy.md#postgresql and ADR 0019")
    if all(needed) and not powerful and not excessive:
        yield ok("privileges", "grantwire_functions has what the functions need, and not more")
