"""I3, I4, I8: the settings of the guard, and the responses that are stored."""

from __future__ import annotations

from dataclasses import astuple
from datetime import timedelta

import pytest

from grantwire.idempotency import IdempotencySettings
from grantwire.settings import load
from grantwire_idempotency import GuardSettings, StoredResponse, raise_for_outcome
from grantwire_idempotency.errors import KeyConflictError, RequestInProgressError


def test_service_settings_have_library_defaults() -> None:
    """I4, I8: the service reads them from the environment; the defaults are those of the library."""
    assert astuple(load(IdempotencySettings, {})) == astuple(GuardSettings())
    settings = load(IdempotencySettings, {"IDEMPOTENCY_TTL": "1h", "IDEMPOTENCY_LOCK_WAIT": "500ms"})
    assert isinstance(settings, GuardSettings)
    assert astuple(settings) == (timedelta(hours=1), timedelta(milliseconds=500))


@pytest.mark.parametrize(
    ("status_code", "final"),
    [
        (199, False),
        (200, True),
        (299, True),
        (303, True),
        (399, True),
        (400, False),
        (401, True),
        (499, True),
        (500, False),
    ],
)
def test_only_success_and_refusal_are_final(status_code: int, *, final: bool) -> None:
    """I3, C19: a malformed request (400) and a fault (5xx) are not stored; a redirect is."""
    assert StoredResponse(status_code, "{}").is_final is final


def test_raise_for_outcome_raises_for_conflict_and_in_progress() -> None:
    """I2, I8: every other outcome passes."""
    with pytest.raises(KeyConflictError):
        raise_for_outcome("IDEMPOTENCY_KEY_CONFLICT")
    with pytest.raises(RequestInProgressError):
        raise_for_outcome("REQUEST_IN_PROGRESS")
    raise_for_outcome("REPLAYED")
