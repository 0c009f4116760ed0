"""O6, N2: the settings of the relay."""

from __future__ import annotations

from datetime import timedelta

import pytest

from grantwire.errors import ConfigError
from grantwire.settings import load
from grantwire.wiring.workers.relay_outbox import RelaySettings

REQUIRED = {
    "DATABASE_URL": "postgresql://db",
    "NATS_URL": "nats://nats-server",
    "ENTITLEMENT_NATS_SUBJECT": "entitlements",
    "ENTITLEMENT_NATS_STREAM": "ENTITLEMENTS",
    "NOTIFICATION_NATS_STREAM": "ENTITLEMENTS",
    "NOTIFICATION_NATS_DURABLE": "bridge",
}


def test_defaults_match_the_specification() -> None:
    """O6: poll 200 ms, batch 200, lease 30 s, ten attempts, backoff from 1 s to 60 s."""
    settings = load(RelaySettings, REQUIRED)
    leases = settings.leases
    assert (leases.poll_interval, leases.batch_size) == (timedelta(milliseconds=200), 200)
    assert (leases.lease, leases.max_attempts) == (timedelta(seconds=30), 10)
    assert (leases.backoff_base, leases.backoff_max) == (timedelta(seconds=1), timedelta(seconds=60))
    assert settings.listener_settings == settings.database


def test_each_setting_is_read_from_its_environment_variable() -> None:
    """O6: entitlement.outbox.backoff-base is ENTITLEMENT_OUTBOX_BACKOFF_BASE; the others follow the same rule."""
    changed = {
        "ENTITLEMENT_OUTBOX_POLL_INTERVAL": "1s",
        "ENTITLEMENT_OUTBOX_BATCH_SIZE": "50",
        "ENTITLEMENT_OUTBOX_LEASE": "10s",
        "ENTITLEMENT_OUTBOX_MAX_ATTEMPTS": "3",
        "ENTITLEMENT_OUTBOX_BACKOFF_BASE": "2s",
        "ENTITLEMENT_OUTBOX_BACKOFF_MAX": "5s",
        "ENTITLEMENT_OUTBOX_BACKOFF_MIN": "100ms",
        "ENTITLEMENT_OUTBOX_BACKOFF_JITTER_MIN": "1",
        "ENTITLEMENT_OUTBOX_BACKOFF_JITTER_MAX": "2",
    }
    leases = load(RelaySettings, REQUIRED | changed).leases
    assert (leases.batch_size, leases.max_attempts) == (50, 3)
    assert leases.backoff.delay(1, lambda: 0.0) == timedelta(seconds=2)
    assert leases.backoff.delay(9, lambda: 0.5) == timedelta(seconds=7.5)


@pytest.mark.parametrize(("window", "is_valid"), [("150s", False), ("151s", True)])
def test_duplicate_window_must_exceed_the_time_until_a_retry(window: str, is_valid: bool) -> None:
    """N2: the duplicate window must exceed lease + 2 x backoff cap: 30 s + 2 x 60 s."""
    environ = REQUIRED | {"ENTITLEMENT_NATS_DUPLICATE_WINDOW": window}
    if is_valid:
        load(RelaySettings, environ)
        return
    with pytest.raises(ConfigError, match="ENTITLEMENT_NATS_DUPLICATE_WINDOW must exceed"):
        load(RelaySettings, environ)


def test_wake_up_uses_a_direct_connection_and_can_be_disabled() -> None:
    """O9: LISTEN does not work through a connection pooler."""
    direct = load(RelaySettings, REQUIRED | {"DATABASE_LISTEN_HOST": "direct:5433"}).listener_settings
    assert direct is not None
    assert (direct.url, direct.listen_host) == ("postgresql://db", "direct:5433")
    assert load(RelaySettings, REQUIRED | {"ENTITLEMENT_OUTBOX_WAKEUP": "false"}).listener_settings is None


def test_one_error_names_every_invalid_setting() -> None:
    """The init phase fails before the function claims any work."""
    with pytest.raises(ConfigError) as caught:
        load(RelaySettings, {"ENTITLEMENT_OUTBOX_LEASE": "soon", "ENTITLEMENT_OUTBOX_WAKEUP": "maybe"})
    text = str(caught.value)
    for name in ("NATS_URL", "ENTITLEMENT_OUTBOX_LEASE", "ENTITLEMENT_OUTBOX_WAKEUP", "ENTITLEMENT_NATS_STREAM"):
        assert name in text
