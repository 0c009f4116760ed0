"""Follows a change through all tables: everything that happened, in order of time (T2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grantwire.database import Jsonb
from grantwire.entitlements import Operation
from grantwire.operations.actions import MAX_IDS, find_actions
from grantwire.operations.timeline import Evidence, build_timeline, describe_state, find_removed, has_stored_response
from grantwire.operations.trace_query import TraceQuery

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from uuid import UUID

    from grantwire.database import Connection, Database

_MAX_CHANGES = 50
# The newest changes of an entitlement among which the change of an event is searched; trace_changes allows no more.
_MAX_HISTORY = 100
_MAX_ENTRIES = 2000
# Actions of operators, and dead letters of messages: of each, this many are shown.
_MAX_RELATED = 500

# The SQL function reads the audit, which the role of the functions cannot (infra/sql/functions/trace_changes.sql).
_CHANGES = """
SELECT trace_changes(%(user_id)s, %(stock_keeping_unit)s, %(purchase_id)s, %(trace_id)s, %(fingerprint)s,
                     %(event_id)s::uuid, %(limit)s, %(correlation_id)s::text)
"""

_STAGES = "SELECT trace_stages(%(event_ids)s::uuid[], %(requests)s, %(ttl)s, %(limit)s)"

# The event of a notification, and the entitlement of an event. The audit finds an event without it only by the time in
# its id.
_EVENT_OF_NOTIFICATION = """
SELECT event_id FROM notifications WHERE notification_id = %(id)s
UNION ALL SELECT event_id FROM notification_dlq WHERE notification_id = %(id)s
LIMIT 1
"""

_ENTITLEMENT_OF_EVENT = """
SELECT payload->>'user_id', payload->>'stock_keeping_unit' FROM outbox_events WHERE event_id = %(id)s
UNION ALL SELECT user_id, stock_keeping_unit FROM notifications WHERE event_id = %(id)s
UNION ALL SELECT user_id, stock_keeping_unit FROM notification_dlq WHERE event_id = %(id)s
UNION ALL SELECT user_id, stock_keeping_unit FROM notification_nats_dlq WHERE event_id = %(id)s
LIMIT 1
"""

_READ_MODEL = """
SELECT coalesce(jsonb_agg(jsonb_build_object(
         'user_id', r.user_id, 'stock_keeping_unit', r.stock_keeping_unit, 'status', r.status, 'version', r.version,
         'at', rfc3339(r.changed_at))), '[]')
  FROM user_entitlements r
  JOIN jsonb_to_recordset(%(entitlements)s) AS e (user_id text, stock_keeping_unit text)
       USING (user_id, stock_keeping_unit)
"""


class Traces:
    """Reads traces. `response_ttl` is how long a stored response is kept."""

    def __init__(self, database: Database, response_ttl: timedelta) -> None:
        self._database = database
        self._response_ttl = response_ttl

    def find(self, query: TraceQuery) -> dict[str, Any]:
        """Return the trace as the JSON object of the response; its timeline is empty if nothing is known."""
        with self._database.session() as connection:
            event_id = self._find_event(connection, query)
            changes = self._find_changes(connection, query, event_id)
            truncated = len(changes) > _MAX_CHANGES
            changes = sorted(changes[:_MAX_CHANGES], key=lambda change: (change["at"], change["version"] or 0))
            ids = [change["event_id"] for change in changes] or ([] if event_id is None else [str(event_id)])
            evidence, is_complete = self._collect(connection, changes, ids)
        timeline = build_timeline(evidence)
        return {
            "query": query.as_dict(),
            "truncated": truncated or not is_complete or len(timeline) > _MAX_ENTRIES,
            "changes": [{**_shorten(change), "state": describe_state(change, evidence)} for change in changes],
            "timeline": timeline[:_MAX_ENTRIES],
            "removed": find_removed(evidence),
        }

    def _find_event(self, connection: Connection, query: TraceQuery) -> UUID | None:
        """Return the event of the query, if it names one; the id of a notification without its row leads to none."""
        if query.notification_id is None:
            return query.event_id
        row = connection.execute(_EVENT_OF_NOTIFICATION, {"id": query.notification_id}).fetchone()
        return None if row is None else row[0]

    def _find_changes(self, connection: Connection, query: TraceQuery, event_id: UUID | None) -> list[dict[str, Any]]:
        if query.event_id is None and query.notification_id is None:
            return self._read_changes(connection, query, _MAX_CHANGES + 1)
        if event_id is None:
            return []
        entitlement = connection.execute(_ENTITLEMENT_OF_EVENT, {"id": event_id}).fetchone()
        if entitlement is None or None in entitlement:
            return self._read_changes(connection, TraceQuery(event_id=event_id), 1)
        history = self._read_changes(connection, TraceQuery(*entitlement), _MAX_HISTORY)
        found = [change for change in history if change["event_id"] == str(event_id)]
        return found or self._read_changes(connection, TraceQuery(event_id=event_id), 1)

    def _read_changes(self, connection: Connection, query: TraceQuery, limit: int) -> list[dict[str, Any]]:
        parameters = {
            "user_id": query.user_id,
            "stock_keeping_unit": query.stock_keeping_unit,
            "purchase_id": query.purchase_id,
            "trace_id": query.trace_id,
            "fingerprint": query.fingerprint,
            "event_id": query.event_id,
            "limit": limit,
            "correlation_id": query.correlation_id,
        }
        ((changes,),) = connection.execute(_CHANGES, parameters).fetchall()
        return list(changes)

    def _collect(
        self, connection: Connection, changes: Sequence[dict[str, Any]], ids: Sequence[str]
    ) -> tuple[Evidence, bool]:
        """Return what the tables have about the events, and whether this is everything."""
        requests = [
            {
                "event_id": change["event_id"],
                "caller": change["caller"],
                "route": Operation(change["operation"]).route,
                "fingerprint": change["detail"]["key_fingerprint"],
                "at": change["at"],
            }
            for change in changes
            if has_stored_response(change)
        ]
        limit = _MAX_RELATED + 1
        parameters = {"event_ids": list(ids), "requests": Jsonb(requests), "ttl": self._response_ttl, "limit": limit}
        ((stages,),) = connection.execute(_STAGES, parameters).fetchall()
        entitlements = {(change["user_id"], change["stock_keeping_unit"]) for change in changes}
        pairs = [{"user_id": user_id, "stock_keeping_unit": sku} for user_id, sku in sorted(entitlements)]
        ((read_model,),) = connection.execute(_READ_MODEL, {"entitlements": Jsonb(pairs)}).fetchall()
        dead = [entry["dead_letter_id"] for name in ("dead_notifications", "dead_messages") for entry in stages[name]]
        actions = find_actions(connection, [*ids, *dead][:MAX_IDS], limit)
        is_complete = max(len(actions), len(stages["dead_messages"])) <= _MAX_RELATED
        stages["dead_messages"] = stages["dead_messages"][:_MAX_RELATED]
        return Evidence(list(changes), stages, read_model, actions[:_MAX_RELATED]), is_complete


def _shorten(change: dict[str, Any]) -> dict[str, Any]:
    names = (
        *("event_id", "user_id", "stock_keeping_unit", "operation", "outcome", "version", "purchase_id", "trace_id"),
        *("correlation_id", "at"),
    )
    return {name: change[name] for name in names}
