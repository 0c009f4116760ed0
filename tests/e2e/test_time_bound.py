"""Entitlements with a start and an end on the deployed stack. Only the schedules invoke the workers."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from infra.local.system.processes import wait_for, wait_until
from tests.support.client import EXTENSIONS, INBOX

if TYPE_CHECKING:
    from tests.e2e.http import Http

# A worker is started every minute and works for 63 seconds; the first one may have a cold start.
DELIVERY_TIMEOUT_SECONDS = 75.0


@pytest.fixture
def user() -> str:
    """A new user."""
    return f"u_{uuid.uuid4()}"


def _in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def test_entitlement_starts_and_ends_by_itself(http: Http, user: str) -> None:
    """K3, K4, S3: its status follows the clock, and each time event becomes a notification, in order."""
    http.grant(f"{user}-0", user_id="")  # a bad request, but it starts the function's process
    granted = http.grant(f"{user}-1", user_id=user, starts_at=_in_seconds(4), expires_at=_in_seconds(8))
    assert granted.status == 200, granted.body
    assert granted.json["status"] == "SCHEDULED"
    assert wait_until(lambda: _status(http, user) == "ACTIVE", timeout=DELIVERY_TIMEOUT_SECONDS)
    assert wait_until(lambda: _status(http, user) == "EXPIRED", timeout=DELIVERY_TIMEOUT_SECONDS)
    sent = wait_for(lambda: _notifications(http, user, 3), DELIVERY_TIMEOUT_SECONDS, every=0.1)
    assert [each["event_type"] for each in reversed(sent)] == [
        "EntitlementGranted",
        "EntitlementStarted",
        "EntitlementExpired",
    ]
    assert http.revoke(f"{user}-2", user_id=user).json["message"] == "already EXPIRED"


def test_extension_over_http(http: Http, user: str) -> None:
    """K5: the end moves; a repeat is replayed."""
    http.grant(f"{user}-1", user_id=user, expires_at=_in_seconds(60))
    later = _in_seconds(120)
    extended = http.change(EXTENSIONS, f"{user}-2", user_id=user, expires_at=later)
    assert (extended.status, extended.json["version"]) == (200, 2)
    again = http.change(EXTENSIONS, f"{user}-2", user_id=user, expires_at=later)
    assert (again.body, again.replayed) == (extended.body, True)


def _status(http: Http, user: str) -> str:
    (entitlement,) = http.list_entitlements(user).json["entitlements"]
    return str(entitlement["status"])


def _notifications(http: Http, user: str, count: int) -> list[dict[str, Any]]:
    """Return the notifications about a user, newest first, as soon as there are `count` of them."""
    response = http.send("GET", INBOX.replace("{user_id}", user))
    notifications: list[dict[str, Any]] = json.loads(response.body)["notifications"]
    return notifications if len(notifications) == count else []
