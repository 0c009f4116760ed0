"""O2, O4, O5: names of claims, backoff, and the decision after a failure."""

from __future__ import annotations

from datetime import timedelta

import pytest

from grantwire.errors import ConfigError, LeaseLostError
from grantwire.outbox import store
from grantwire.settings import load
from grantwire.workers.leases import (
    Lease,
    LeaseSettings,
    RetryDecision,
    decide_retry,
    ensure_claim_held,
    worker_name,
)

DEFAULTS = load(LeaseSettings, {})


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60), (8, 60), (5000, 60)]
)
@pytest.mark.parametrize(("rand", "jitter"), [(0.0, 0.5), (0.5, 1.0), (0.999, 1.499)])
def test_backoff_doubles_up_to_its_cap_and_jitters(attempt: int, seconds: float, rand: float, jitter: float) -> None:
    """O4: min(cap, base * 2^(attempt - 1)) * (0.5 + rand())."""
    delay = DEFAULTS.backoff.delay(attempt, lambda: rand)
    assert delay.total_seconds() == pytest.approx(seconds * jitter, abs=1e-6)


def test_every_bound_of_the_backoff_is_a_setting() -> None:
    """O4, O6: base, cap, floor and both ends of the jitter."""
    settings = load(
        LeaseSettings,
        {
            "BACKOFF_BASE": "100ms",
            "BACKOFF_MAX": "1s",
            "BACKOFF_MIN": "150ms",
            "BACKOFF_JITTER_MIN": "1",
            "BACKOFF_JITTER_MAX": "2",
        },
    )
    assert settings.backoff.delay(1, lambda: 0.0) == timedelta(milliseconds=150)
    assert settings.backoff.delay(2, lambda: 0.5) == timedelta(milliseconds=300)
    assert settings.backoff.delay(9, lambda: 0.0) == timedelta(seconds=1)


@pytest.mark.parametrize(
    "environ",
    [
        {"BACKOFF_JITTER_MIN": "2", "BACKOFF_JITTER_MAX": "1"},
        {"BACKOFF_MIN": "2s", "BACKOFF_MAX": "1s"},
        {"BACKOFF_BASE": "2m"},
    ],
)
def test_bounds_out_of_order_are_a_config_error(environ: dict[str, str]) -> None:
    """Each is fine alone."""
    with pytest.raises(ConfigError, match="must not exceed"):
        load(LeaseSettings, environ)


def test_the_tenth_failure_is_the_last() -> None:
    """O5: attempts are counted, and the last of them ends the matter."""
    assert decide_retry(DEFAULTS, 0, lambda: 0.5) == RetryDecision(1, timedelta(seconds=1))
    assert decide_retry(DEFAULTS, 8, lambda: 0.5) == RetryDecision(9, timedelta(seconds=60))
    assert decide_retry(DEFAULTS, 9, lambda: 0.5) == RetryDecision(10, None)


def test_a_permanent_failure_is_the_last_at_once() -> None:
    """O5: what cannot succeed is not tried again."""
    assert decide_retry(DEFAULTS, 0, lambda: 0.5, permanent=True) == RetryDecision(1, None)


def test_no_two_claims_have_one_name() -> None:
    """O2: even of one worker."""
    first, second = Lease(store, DEFAULTS, "host"), Lease(store, DEFAULTS, "host")
    assert first.token.startswith("host/")
    assert first.token != second.token


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"AWS_LAMBDA_LOG_STREAM_NAME": "2026/[1]abc", "HOSTNAME": "h"}, "2026/[1]abc"),
        ({"AWS_LAMBDA_LOG_STREAM_NAME": "", "HOSTNAME": "h"}, "h"),
        ({"HOSTNAME": "h"}, "h"),
        ({"HOSTNAME": ""}, "the-host"),
        ({}, "the-host"),
    ],
)
def test_a_worker_is_named_after_its_log_stream(
    environ: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O2: the Lambda log stream, else HOSTNAME, else the host's name; of the environment that it is given."""
    monkeypatch.setattr("socket.gethostname", lambda: "the-host")
    monkeypatch.setenv("HOSTNAME", "of another environment")
    monkeypatch.setenv("AWS_LAMBDA_LOG_STREAM_NAME", "of another environment")
    assert worker_name(environ) == name


def test_fewer_rows_than_expected_stop_the_worker() -> None:
    """O2: somebody else has the work."""
    ensure_claim_held(2, 2, "renew")
    with pytest.raises(LeaseLostError, match="1 of 2"):
        ensure_claim_held(1, 2, "renew")
