"""Lists and limits that Python, SQL and the API documents each define must be equal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire import validation
from grantwire.events import EVENT_TYPES
from grantwire.notifications.columns import SHARED_COLUMNS
from tests.support.contract import document

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

_COLUMNS = """
SELECT attname AS name FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
"""
_LENGTHS = """
SELECT conname AS name, pg_get_constraintdef(oid) AS definition FROM pg_constraint
 WHERE contype = 'c' AND connamespace = 'public'::regnamespace AND pg_get_constraintdef(oid) ~ 'char_length'
   AND conrelid = ANY ('{entitlements, notifications, user_entitlements, api_clients}'::regclass[])
"""
_OPERATIONS = """
SELECT pg_get_constraintdef(oid) AS definition FROM pg_constraint
 WHERE conrelid = 'entitlement_audit'::regclass AND conname = 'entitlement_audit_operation'
"""
_NOTIFICATION = """
INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload)
VALUES (gen_random_uuid(), gen_random_uuid(), %s, 'u', 's', 1, '{}')
"""

MAX_LENGTHS = {
    "entitlements_user_id_length": validation.MAX_NAME_LENGTH,
    "entitlements_sku_length": validation.MAX_NAME_LENGTH,
    "entitlements_purchase_id_length": validation.MAX_NAME_LENGTH,
    "notifications_user_id_length": validation.MAX_NAME_LENGTH,
    "notifications_sku_length": validation.MAX_NAME_LENGTH,
    "user_entitlements_user_id_length": validation.MAX_NAME_LENGTH,
    "user_entitlements_sku_length": validation.MAX_NAME_LENGTH,
    "api_clients_name_length": validation.MAX_CLIENT_NAME_LENGTH,
}


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    """The schemas of the API."""
    components: dict[str, Any] = document()["components"]["schemas"]
    return components


def test_event_types_are_equal_in_python_and_sql(rows: Rows) -> None:
    """N1: an unknown event type has no status in SQL."""
    (row,) = rows.execute("SELECT pg_get_functiondef('entitlement_status_after'::regproc) AS text").fetchall()
    assert set(re.findall(r"WHEN '(\w+)'", row["text"])) == EVENT_TYPES
    (other,) = rows.execute("SELECT entitlement_status_after('EntitlementForgotten') AS status").fetchall()
    assert other == {"status": None}


def test_every_operation_of_the_audit_has_an_event_type(rows: Rows) -> None:
    """G1, K4: the operations that the audit accepts, and no other, each with its own type."""
    (constraint,) = rows.execute(_OPERATIONS).fetchall()
    operations = set(re.findall(r"'(\w+)'", constraint["definition"]))
    types = rows.execute("SELECT entitlement_event_type(unnest(%s::text[])) AS name", (sorted(operations),)).fetchall()
    assert sorted(row["name"] for row in types) == sorted(EVENT_TYPES)
    assert rows.execute("SELECT entitlement_event_type('PAINT') AS name").fetchall() == [{"name": None}]


def test_database_rejects_notifications_of_unknown_event_types(rows: Rows) -> None:
    """N5: by the constraint `notifications_event_type`."""
    for name in EVENT_TYPES:
        rows.execute(_NOTIFICATION, (name,))
    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        rows.execute(_NOTIFICATION, ("EntitlementForgotten",))
    assert caught.value.diag.constraint_name == "notifications_event_type"


def test_event_types_are_equal_in_the_api_document(schemas: dict[str, Any], rows: Rows) -> None:
    """D4, K9: in the list of notifications, and in the change feed, which has the types of all operations."""
    definitions = [list(_values(schemas["Notification"], "event_type"))]
    assert definitions == [[{"type": "string", "enum": sorted(EVENT_TYPES)}]]
    (row,) = rows.execute("SELECT pg_get_functiondef('entitlement_event_type'::regproc) AS text").fetchall()
    types = sorted(re.findall(r"'(Entitlement\w+)'", row["text"]))
    assert list(_values(schemas["AppliedChange"], "event_type")) == [{"type": "string", "enum": types}]
    assert set(types) >= EVENT_TYPES


def test_dead_letter_has_every_column_that_a_notification_carries(rows: Rows) -> None:
    """Q4: a new column of a notification must be added to its dead letter and to the list in Python."""
    notification, dead_letter = (
        {row["name"] for row in rows.execute(_COLUMNS, (table,))} for table in ("notifications", "notification_dlq")
    )
    assert set(SHARED_COLUMNS) == (notification & dead_letter) - {"status", "attempt_count", "last_error"}
    assert notification - dead_letter == {
        *("next_retry_at", "locked_by", "locked_at", "lease_until", "created_at", "sent_at", "responses"),
    }


def test_maximum_lengths_are_equal_in_python_and_sql(rows: Rows) -> None:
    """E5: every valid request fits into the tables, and no table accepts longer values."""
    limits = {
        row["name"]: int(re.findall(r"<= (\d+)", row["definition"])[0]) for row in rows.execute(_LENGTHS).fetchall()
    }
    assert limits == MAX_LENGTHS


def test_maximum_lengths_are_equal_in_the_api_document(schemas: dict[str, Any]) -> None:
    """E5: for every field in the body of a change."""
    body = schemas["Change"]["properties"]
    limits = {name: _resolve(schemas, schema)["maxLength"] for name, schema in body.items()}
    assert limits == {
        "user_id": validation.MAX_NAME_LENGTH,
        "stock_keeping_unit": validation.MAX_NAME_LENGTH,
        "purchase_id": validation.MAX_NAME_LENGTH,
        "reason": validation.MAX_REASON_LENGTH,
    }


def _resolve(schemas: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref") or next((part["$ref"] for part in schema.get("allOf", ()) if "$ref" in part), None)
    return {**(schemas[reference.rpartition("/")[2]] if reference else {}), **schema}


def _values(node: Any, name: str) -> Any:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == name and isinstance(value, dict):
                yield value
            else:
                yield from _values(value, name)
    elif isinstance(node, list):
        for value in node:
            yield from _values(value, name)
