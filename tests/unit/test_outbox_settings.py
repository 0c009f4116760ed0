"""O6, N2: the relay's settings, by the documents' names."""

from __future__ import annotations

from datetime import timedelta

import pytest

from grantwire.errors import ConfigError
from grantwire.runtime.relay import RelaySettings
from grantwire.settings import load

REQUIRED = {
    "DATABASE_URL": "postgresql://db",
    "NATS_URL": "nats://broker",
    "ENTITLEMENT_NATS_SUBJECT": "entitlements",
    "ENTITLEMENT_NATS_STREAM": "ENTITLEMENTS",
    "NOTIFICATION_NATS_STREAM": "ENTITLEMENTS",
    "NOTIFICATION_NATS_DURABLE": "bridge",
}


def test_defaults_are_those_of_the_documents() -> None:
    """O6: poll 200 ms, batch 200, lease 30 s, ten attempts, backoff from 1 s to 60 s."""
    settings = load(RelaySettings, REQUIRED)
    leases = settings.leases
    assert (leases.poll_interval, leases.batch_size) == (timedelta(milliseconds=200), 200)
    assert (leases.lease, leases.max_attempts) == (timedelta(seconds=30), 10)
    assert (leases.backoff_base, leases.backoff_max) == (timedelta(seconds=1), timedelta(seconds=60))
    assert settings.listener_settings == settings.database


def test_the_documents_names_are_environment_variables() -> None:
    """O6: entitlement.outbox.backoff-base is ENTITLEMENT_OUTBOX_BACKOFF_BASE, and so on."""
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


@pytest.mark.parametrize(("window", "fits"), [("150s", False), ("151s", True)])
def test_the_broker_must_remember_an_event_for_longer_than_it_is_retried(window: str, fits: bool) -> None:
    """N2: the duplicate window must exceed lease + 2 x backoff cap: 30 s + 2 x 60 s."""
    environ = REQUIRED | {"ENTITLEMENT_NATS_DUPLICATE_WINDOW": window}
    if fits:
        load(RelaySettings, environ)
        return
    with pytest.raises(ConfigError, match="ENTITLEMENT_NATS_DUPLICATE_WINDOW must exceed"):
        load(RelaySettings, environ)


def test_the_wake_up_has_a_way_of_its_own_to_the_database() -> None:
    """O9: LISTEN does not work through a pooler; it can be switched off."""
    direct = load(RelaySettings, REQUIRED | {"DATABASE_LISTEN_HOST": "direct:5433"}).listener_settings
    assert direct is not None
    assert (direct.url, direct.listen_host) == ("postgresql://db", "direct:5433")
    assert load(RelaySettings, REQUIRED | {"ENTITLEMENT_OUTBOX_WAKEUP": "false"}).listener_settings is None


def test_every_problem_is_named_at_once() -> None:
    """A function that cannot work stops before it takes work."""
    with pytest.raises(ConfigError) as caught:
        load(RelaySettings, {"ENTITLEMENT_OUTBOX_LEASE": "soon", "ENTITLEMENT_OUTBOX_WAKEUP": "maybe"})
    text = str(caught.value)
    for name in ("NATS_URL", "ENTITLEMENT_OUTBOX_LEASE", "ENTITLEMENT_OUTBOX_WAKEUP", "ENTITLEMENT_NATS_STREAM"):
        assert name in text
