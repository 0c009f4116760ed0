"""Responses of the operations API, for tests of the grantwire command."""

from __future__ import annotations

from typing import Any

AT = "2026-01-08T07:10:00.000000Z"
COMMAND_ID = "019b9c5d-3f40-7abc-8def-0123456789ab"
EVENT_ID = "019b9c5d-3f40-7abc-8def-0123456789ac"
LEASES = {"held": 1, "expired": 0, "expired_since": None}


def status(**changes: Any) -> dict[str, Any]:
    """Return the status of a healthy installation, with changes."""
    healthy: dict[str, Any] = {
        "at": AT,
        "state": "OK",
        "problems": [],
        "settled": {
            "through": AT,
            "age_seconds": 0.1,
            "held_back_by": "outbox",
            "oldest": {"transactions": None, "times": None, "outbox": AT, "stream": None, "notifications": None},
        },
        "outbox": {
            "pending": 3,
            "in_flight": 1,
            "failed": 0,
            "parked": 0,
            "capped": False,
            "oldest_pending_at": AT,
            "oldest_pending_seconds": 0.1,
            "published_last_minute": 120,
        },
        "stream": {"state": "UP", "reason": None, "consumer_lag": 0, "measured_at": AT, "unknown_since": None},
        "inbox": {"processed_last_minute": 119},
        "notifications": {
            "pending": 2,
            "processing": 0,
            "failed": 0,
            "waiting": [],
            "capped": False,
            "oldest_due_seconds": 0.2,
            "sent_last_minute": 118,
        },
        "receiver": {
            "state": "AVAILABLE",
            "unavailable_since": None,
            "failures_in_a_row": 0,
            "last_error": None,
            "last_error_at": None,
            "last_response_at": AT,
        },
        "confirmation": {
            "checked_at": AT,
            "checked_seconds_ago": 5.0,
            "unchecked_since": AT,
            "unconfirmed": 0,
            "waiting": 0,
            "republished": 0,
            "capped": False,
            "redrives": 0,
            "too_old": 0,
            "too_old_since": None,
            "republished_last_hour": 0,
            "last_republished_at": None,
            "losses": [],
        },
        "leases": {"outbox": LEASES, "notifications": LEASES, "commands": LEASES},
        "dead_letters": {"open": 0, "capped": False, "groups": []},
        "read_model": {"ahead": 0, "behind": 0, "wrong": 0, "measured_at": AT},
        "partitions": {"months_ahead": 3, "last_month": "2026-04", "rows_in_default": 0},
        "schema": {"version": "0031", "expected": "0031", "matches": True},
        "commands": {"pending": 0, "running": 0, "failed_last_day": 0, "last_failure": None},
        "clients": {"expiring": 0, "soonest": []},
        "workers": [
            {
                "worker": "relay_outbox",
                "outcome": "OK",
                "late": False,
                "started_at": AT,
                "finished_at": AT,
                "duration_ms": 63000,
                "seconds_since": 1.0,
                "failures_in_a_row": 0,
                "last_success_at": AT,
                "error": None,
                "result": {"published": 120},
            }
        ],
    }
    return healthy | changes


def problem(code: str, message: str, **changes: Any) -> dict[str, Any]:
    """Return a problem of the status."""
    texts = {"still_works": f"still works with {code}", "to_do": f"to do about {code}"}
    return {"code": code, "message": message, "since": None, "last_error": None, **texts, **changes}


def command(status_: str, **changes: Any) -> dict[str, Any]:
    """Return a command of the operations API in a status."""
    return {
        "command_id": COMMAND_ID,
        "kind": "dead_letters.redrive",
        "status": status_,
        "arguments": {},
        "actor": "jane",
        "reason": "fixed",
        "source": "client 4f9a1b2c3d4e",
        "progress": {"selected": 2, "done": 2 if status_ == "DONE" else 0, "skipped": {}},
        "result": None,
        "error": None,
        "attempts": 1,
        "created_at": AT,
        "started_at": AT,
        "updated_at": AT,
        "finished_at": None,
    } | changes


ACCEPTED = {"command_id": COMMAND_ID, "kind": "dead_letters.redrive", "status": "PENDING", "created_at": AT}
TRACE: dict[str, Any] = {
    "query": {"purchase_id": "p_456"},
    "truncated": False,
    "changes": [
        {
            "event_id": EVENT_ID,
            "user_id": "u_123",
            "stock_keeping_unit": "item1",
            "operation": "GRANT",
            "outcome": "APPLIED",
            "version": 12,
            "purchase_id": "p_456",
            "trace_id": None,
            "at": AT,
            "state": "SENT",
        }
    ],
    "timeline": [
        {
            "stage": "change",
            "at": AT,
            "offset_ms": 0.0,
            "event_id": EVENT_ID,
            "summary": "GRANT applied, version 12",
            "detail": {"caller": "4f9a1b2c3d4e"},
        },
        {
            "stage": "sent",
            "at": AT,
            "offset_ms": 62.5,
            "event_id": EVENT_ID,
            "summary": "receiver responded with 200",
            "detail": {},
        },
    ],
    "removed": [{"stage": "request", "event_id": EVENT_ID, "reason": "the stored response is no longer kept"}],
}
LETTER = {
    "kind": "notification",
    "dead_letter_id": "6a1f0c9e-2b3d-4e5f-8a90-b1c2d3e4f506",
    "state": "OPEN",
    "cause": "receiver responded with status 500",
    "error": "receiver responded with status 500",
    "event_id": EVENT_ID,
    "event_type": "EntitlementGranted",
    "user_id": "u_123",
    "stock_keeping_unit": "item1",
    "since": AT,
    "event_time": None,
    "closed_at": None,
    "has_copy": True,
    "last_action": None,
}
DETAIL: dict[str, Any] = LETTER | {
    "attempts": 10,
    "trace_id": None,
    "message": {
        "format": "json",
        "decoded": {"user_id": "u_123"},
        "base64": None,
        "text": None,
        "hex": None,
        "size": None,
        "problem": None,
        "headers": None,
        "subject": None,
        "stream": None,
        "stream_sequence": None,
    },
    "actions": [
        {
            "action_id": COMMAND_ID,
            "action": "redrive",
            "actor": "jane",
            "reason": "fixed",
            "source": "console",
            "dry_run": True,
            "at": AT,
        }
    ],
}
GROUPS = {
    "open": 2,
    "capped": False,
    "groups": [{"kind": "notification", "cause": LETTER["cause"], "count": 2, "first_at": AT, "last_at": AT}],
}
CLIENT = {
    "client_id": "4k2j9x0q7w1z",
    "name": "shop",
    "scopes": ["entitlements:write"],
    "created_at": AT,
    "created_by": None,
    "rotated_at": None,
    "previous_until": None,
    "expires_at": None,
    "revoked_at": None,
    "last_used_at": None,
    "rate_limit": None,
    "burst_limit": None,
}
