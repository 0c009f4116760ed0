"""The SQL that tells genuine events from others: only an event that the audit has took place (G1).

Any client that may publish to the stream can send a message that looks like an event. The bridge and a rebuild from the
stream therefore ask the audit, which is written in the transaction of each change.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from grantwire.database import wrap_exceptions
from grantwire.events import OPTIONAL_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grantwire.database import Connection

NOT_GENUINE = "not genuine: the audit has no change with this event id, user, sku, version, type and times"

# The SQL function (infra/sql/functions/genuine_events.sql) defines which events are genuine.
_FIND_GENUINE = """
SELECT genuine_events(%(event_ids)s::uuid[], %(user_ids)s::text[], %(skus)s::text[], %(event_types)s::text[],
                      %(versions)s::bigint[], %(times)s::timestamptz[], %(digests)s::bytea[], %(fields)s::text[])
"""


def message_digest(data: bytes) -> bytes:
    """Return the SHA-256 of a message, by which a forced redrive is recognised."""
    return hashlib.sha256(data).digest()


def find_genuine(tx: Connection, payloads: Sequence[Mapping[str, Any]], digests: Sequence[bytes]) -> set[int]:
    """Return the positions of the genuine events among `payloads`; each has the digest of its message.

    An empty list runs the statement, which proves that the database is able to answer. Raises RejectedError for more
    than 5,000 events.
    """
    parameters = {
        "event_ids": [payload["event_id"] for payload in payloads],
        "user_ids": [payload["user_id"] for payload in payloads],
        "skus": [payload["stock_keeping_unit"] for payload in payloads],
        "event_types": [payload["event_type"] for payload in payloads],
        "versions": [payload["version"] for payload in payloads],
        "times": [payload["occurred_at"] for payload in payloads],
        "digests": list(digests),
        "fields": [_optional_fields(payload) for payload in payloads],
    }
    with wrap_exceptions():
        row = tx.execute(_FIND_GENUINE, parameters).fetchone()
    return set() if row is None else {position - 1 for position in row[0]}


def _optional_fields(payload: Mapping[str, Any]) -> str:
    """Return the optional fields of an event as the SQL function entitlement_fields renders them."""
    return "".join(f',"{name}":{json.dumps(payload[name])}' for name in OPTIONAL_FIELDS if name in payload)
