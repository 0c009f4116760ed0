"""I3, I4, I8: the guard's settings, and which responses are kept."""

from __future__ import annotations

from dataclasses import astuple
from datetime import timedelta

import pytest

from grantwire.idempotency import IdempotencySettings
from grantwire.settings import load
from grantwire_idempotency import GuardSettings, StoredResponse
from grantwire_idempotency.errors import KeyConflictError, RequestInProgressError
from grantwire_idempotency.requests import raise_for_outcome


def test_the_service_reads_the_guard_s_settings_from_the_environment() -> None:
    """I4, I8: without a variable both have the same values."""
    assert astuple(load(IdempotencySettings, {})) == astuple(GuardSettings())
    given = load(IdempotencySettings, {"IDEMPOTENCY_TTL": "1h", "IDEMPOTENCY_LOCK_WAIT": "500ms"})
    assert isinstance(given, GuardSettings)
    assert astuple(given) == (timedelta(hours=1), timedelta(milliseconds=500))


@pytest.mark.parametrize(
    ("status_code", "final"),
    [(199, False), (200, True), (299, True), (300, False), (400, False), (401, True), (499, True), (500, False)],
)
def test_success_and_refusal_are_final_and_a_malformed_request_or_a_fault_is_not(
    status_code: int, *, final: bool
) -> None:
    """I3."""
    assert StoredResponse(status_code, "{}").is_final is final


def test_an_outcome_that_is_no_answer_is_an_error() -> None:
    """I2, I8: every other outcome passes."""
    with pytest.raises(KeyConflictError):
        raise_for_outcome("IDEMPOTENCY_KEY_CONFLICT")
    with pytest.raises(RequestInProgressError):
        raise_for_outcome("REQUEST_IN_PROGRESS")
    raise_for_outcome("REPLAYED")
