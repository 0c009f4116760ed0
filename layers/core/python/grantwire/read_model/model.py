"""The SQL that keeps the read model: each right as the newest of its projected events left it (P1)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from grantwire.database import refusing_data

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import LiteralString

    from grantwire.database import Connection

# Sorted as the primary key is: two bridges, or a bridge and a rebuild, that have rights in common wait for each other
# in one order, never in a circle. Of several events of one right the newest counts. A version may be missing for good,
# so the guard asks for a later one, never for the next one. The source is a FROM clause with the columns of an event.
_BRING: LiteralString = """
INSERT INTO user_rights AS known (user_id, stock_keeping_unit, status, version, changed_at)
SELECT DISTINCT ON (user_id, stock_keeping_unit)
       user_id, stock_keeping_unit,
       CASE event_type WHEN 'EntitlementGranted' THEN 'ACTIVE' WHEN 'EntitlementRevoked' THEN 'REVOKED' END,
       version, occurred_at
"""
_UP: LiteralString = """
 ORDER BY user_id, stock_keeping_unit, version DESC
    ON CONFLICT (user_id, stock_keeping_unit) DO UPDATE
   SET status = EXCLUDED.status, version = EXCLUDED.version, changed_at = EXCLUDED.changed_at
 WHERE known.version < EXCLUDED.version
"""


def projection_of(source: LiteralString) -> LiteralString:
    """The statement that brings the rights up to the events of `source`."""
    return _BRING + source + _UP


_PROJECT = projection_of("""
  FROM jsonb_to_recordset(%(events)s::jsonb) AS event (
         user_id text COLLATE "C", stock_keeping_unit text COLLATE "C", event_type text, version bigint,
         occurred_at timestamptz)
""")


def project(tx: Connection, events: Sequence[Mapping[str, Any]]) -> int:
    """Bring the rights of these events, given by their payloads, up to them; how many rights have changed.

    In any order and any number of times: an event that is not newer than what is known changes nothing. Raises
    RejectedError if the database refuses the data of one of them; then the transaction is of no more use. With no
    events it changes nothing and tells whether it could.
    """
    with refusing_data():
        return tx.execute(_PROJECT, {"events": json.dumps(events)}).rowcount
