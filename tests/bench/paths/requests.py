"""What a caller waits for: grant, replay and query through their handlers, against pgbench making the same SQL calls."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, LiteralString

from grantwire.entitlements.store import CHANGE, LIST
from tests.bench.callers import RIGHTS, USERS
from tests.bench.fleet import Fleet, Run
from tests.bench.pgbench import pgbench

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.bench.servers import Servers

CLIENTS = 4
HANDLER = "handler"
PGBENCH = "pgbench"

# A change by somebody new each time, with a key of its own. What Python would have computed is a constant.
_CHANGE_ARGUMENTS = {
    "caller": "'local'",
    "route": "'POST /v1/entitlements/grants'",
    "key": "'k' || :number",
    "request_hash": f"'v1:{'0' * 64}'",
    "ttl": "interval '24 hours'",
    "lock_wait_ms": "2000",
    "status": "'ACTIVE'",
    "user_id": "'u' || :number",
    "stock_keeping_unit": "'item1'",
    "reason": "'purchase'",
    "purchase_id": "'p' || :number",
    "operation_id": "gen_random_uuid()",
    "trace_id": "'1-00000000-000000000000000000000000'",
}
_STORED = """
SELECT status_code, response_body FROM idempotency_keys
 WHERE caller = 'local' AND route = 'POST /v1/entitlements/grants' AND idempotency_key = 'limit' || :number
"""

_SEED_RIGHTS: LiteralString = """
INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at)
SELECT 'q_' || u, 'item' || i, 'ACTIVE', 1, now() FROM generate_series(0, %s - 1) u, generate_series(1, %s) i
"""
_SEED_ANSWERS: LiteralString = """
INSERT INTO idempotency_keys
SELECT 'local', 'POST /v1/entitlements/grants', 'limit' || n, 'v1:0', 200, repeat('x', 120), now(), now() + '24h'
  FROM generate_series(0, %s - 1) n
"""

_COUNTS: LiteralString = """
SELECT (SELECT count(*) FROM entitlements WHERE user_id NOT LIKE 'q\\_%'),
       (SELECT count(*) FROM outbox_events), (SELECT count(*) FROM entitlement_audit),
       (SELECT count(*) FROM idempotency_keys WHERE idempotency_key NOT LIKE 'limit%')
"""


def grant_script() -> str:
    """The grant's SQL call in pgbench's words."""
    return "\\set number random(1, 9000000000000000)\n" + _with(CHANGE, _CHANGE_ARGUMENTS) + ";"


def replay_script() -> str:
    """The least that a replay can be: one row by its primary key."""
    return f"\\set number random(0, {USERS - 1})\n{_STORED};"


def query_script() -> str:
    """The query's SELECT in pgbench's words."""
    arguments = {"user_id": "('q_' || :number)", "limit": "1000", "after": "''"}
    return f"\\set number random(0, {USERS - 1})\n" + _with(LIST, arguments) + ";"


def _with(statement: str, arguments: Mapping[str, str]) -> str:
    """One of our statements with pgbench's variables in it. pgbench takes a line for a statement, and ours are longer."""
    return re.sub(r"%\((\w+)\)s", lambda found: arguments[found[1]], statement).strip()


def seed(servers: Servers, url: str) -> None:
    """What query and replay look for."""
    with servers.owner(url) as owner:
        owner.execute(_SEED_RIGHTS, (USERS, RIGHTS))
        owner.execute(_SEED_ANSWERS, (USERS,))
        owner.execute("VACUUM ANALYZE")


class Requests:
    """The clients of one database: a fleet of each kind, and pgbench beside them."""

    def __init__(self, servers: Servers, url: str) -> None:
        self._servers = servers
        self._url = url
        self._changes = 0

    def fleet(self, kind: str, count: int = CLIENTS) -> Fleet:
        """So many clients that grant, replay or query."""
        return Fleet(f"tests.bench.callers:{kind}", count, self._servers.environ(self._url))

    def limit(self, script: str, seconds: float, clients: int = CLIENTS) -> Run:
        """So many clients of pgbench."""
        return pgbench(self._servers, self._url, script, clients=clients, seconds=seconds)

    def counts(self) -> tuple[Any, ...]:
        """Rights, events, audit rows and stored answers."""
        with self._servers.owner(self._url) as owner:
            row = owner.execute(_COUNTS).fetchone()
        assert row is not None
        return row
