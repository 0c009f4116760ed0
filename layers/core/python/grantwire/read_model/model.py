"""The SQL that keeps the read model: each right as the newest of its projected events left it (P1)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from grantwire.database import wrap_exceptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grantwire.database import Connection

# How an event changes the read model is in the SQL function (infra/sql/functions/user_entitlements_project.sql).
_PROJECT = """
SELECT user_entitlements_project(array_agg(user_id), array_agg(stock_keeping_unit), array_agg(event_type),
                           array_agg(version), array_agg(occurred_at))
  FROM jsonb_to_recordset(%(events)s::jsonb) AS e (
       user_id text, stock_keeping_unit text, event_type text, version bigint, occurred_at timestamptz)
"""


def project(tx: Connection, events: Sequence[Mapping[str, Any]]) -> int:
    """Bring the rights of these events, given by their payloads, up to them; how many rights have changed.

    In any order and any number of times: an event that is not newer than what is known changes nothing. Raises
    RejectedError if the database refuses the data of one of them; then the transaction is of no more use. With no
    events it changes nothing and tells whether it could.
    """
    with wrap_exceptions():
        row = tx.execute(_PROJECT, {"events": json.dumps(events)}).fetchone()
    return 0 if row is None else int(row[0])
