"""The SQL that projects events: the read model holds each entitlement as its newest event describes it (P1)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from grantwire.database import wrap_exceptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grantwire.database import Connection

# The SQL function (infra/sql/functions/user_entitlements_project.sql) defines how an event changes the read model.
_PROJECT = """
SELECT user_entitlements_project(array_agg(user_id), array_agg(stock_keeping_unit), array_agg(event_type),
                           array_agg(version), array_agg(occurred_at), array_agg(starts_at), array_agg(expires_at))
  FROM jsonb_to_recordset(%(events)s::jsonb) AS e (
       user_id text, stock_keeping_unit text, event_type text, version bigint, occurred_at timestamptz,
       starts_at timestamptz, expires_at timestamptz)
"""


def project(tx: Connection, events: Sequence[Mapping[str, Any]]) -> int:
    """Project events, given as payloads, and return how many entitlements changed.

    Events may come in any order and repeatedly: one that is not newer than the row changes nothing. Raises
    RejectedError if the database refuses the data of one event; the transaction is then aborted. An empty list
    changes nothing.
    """
    with wrap_exceptions():
        row = tx.execute(_PROJECT, {"events": json.dumps(events)}).fetchone()
    return 0 if row is None else int(row[0])
