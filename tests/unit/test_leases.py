"""O2, O4, O5: claim tokens, backoff, and retry decisions."""

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

DEFAULT_SETTINGS = load(LeaseSettings, {})


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60), (8, 60), (5000, 60)]
)
@pytest.mark.parametrize(("rand", "jitter"), [(0.0, 0.5), (0.5, 1.0), (0.999, 1.499)])
def test_backoff_doubles_up_to_its_cap_with_jitter(attempt: int, seconds: float, rand: float, jitter: float) -> None:
    """O4: min(cap, base * 2^(attempt - 1)) * (0.5 + rand())."""
    delay = DEFAULT_SETTINGS.backoff.delay(attempt, lambda: rand)
    assert delay.total_seconds() == pytest.approx(seconds * jitter, abs=1e-6)


def test_every_backoff_parameter_is_a_setting() -> None:
    """O4, O6: base, cap, floor, and minimum and maximum of the jitter."""
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
def test_lower_bound_above_upper_bound_is_a_config_error(environ: dict[str, str]) -> None:
    """Each value is valid on its own."""
    with pytest.raises(ConfigError, match="must not exceed"):
        load(LeaseSettings, environ)


def test_last_attempt_is_not_retried() -> None:
    """O5: attempts are counted; after the tenth there is no retry."""
    assert decide_retry(DEFAULT_SETTINGS, 0, lambda: 0.5) == RetryDecision(1, timedelta(seconds=1))
    assert decide_retry(DEFAULT_SETTINGS, 8, lambda: 0.5) == RetryDecision(9, timedelta(seconds=60))
    assert decide_retry(DEFAULT_SETTINGS, 9, lambda: 0.5) == RetryDecision(10, None)


def test_permanent_failure_is_not_retried() -> None:
    """O5: this holds for the first attempt too."""
    assert decide_retry(DEFAULT_SETTINGS, 0, lambda: 0.5, permanent=True) == RetryDecision(1, None)


def test_each_claim_has_a_unique_token() -> None:
    """O2: this holds for two claims of the same worker too."""
    first, second = Lease(store, DEFAULT_SETTINGS, "host"), Lease(store, DEFAULT_SETTINGS, "host")
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
def test_worker_name_is_the_log_stream_or_host_name(
    environ: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O2: the Lambda log stream, else HOSTNAME, else the host name; only the passed environment is read."""
    monkeypatch.setattr("socket.gethostname", lambda: "the-host")
    monkeypatch.setenv("HOSTNAME", "from the process environment")
    monkeypatch.setenv("AWS_LAMBDA_LOG_STREAM_NAME", "from the process environment")
    assert worker_name(environ) == name


def test_fewer_changed_rows_than_expected_raise_lease_lost() -> None:
    """O2: another worker has the other rows."""
    ensure_claim_held(2, 2, "renew")
    with pytest.raises(LeaseLostError, match="1 of 2"):
        ensure_claim_held(1, 2, "renew")
