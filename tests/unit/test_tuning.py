"""O6, N2: one variable for each family of settings, with the names of the properties."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from grantwire.errors import ConfigError
from grantwire.jetstream.topology import AdvisoryConsumer, TopologySettings
from grantwire.settings import load
from grantwire.wiring.workers.deliver_notifications import DeliverySettings
from grantwire.wiring.workers.relay_outbox import RelaySettings
from grantwire.wiring.workers.sweep_retention import SweepSettings
from grantwire.workers.leases import LeaseSettings
from tests.support.plaintext import PLAINTEXT

SERVERS = {**PLAINTEXT, "DATABASE_URL": "postgresql://u@h/d", "NATS_URL": "nats://n"}
STREAM = {
    "ENTITLEMENT_NATS_SUBJECT": "s",
    "ENTITLEMENT_NATS_STREAM": "E",
    "NOTIFICATION_NATS_STREAM": "E",
    "NOTIFICATION_NATS_DURABLE": "d",
}
LEASES = (
    "poll-interval=1s,batch-size=100,lease=45s,max-attempts=20,backoff-base=2s,backoff-max=90s,backoff-min=500ms,"
    "backoff-jitter-min=0.8,backoff-jitter-max=1.2"
)
TUNED_LEASES = {
    "poll_interval": timedelta(seconds=1),
    "batch_size": 100,
    "lease": timedelta(seconds=45),
    "max_attempts": 20,
    "backoff_base": timedelta(seconds=2),
    "backoff_max": timedelta(seconds=90),
    "backoff_min": timedelta(milliseconds=500),
    "backoff_jitter_min": 0.8,
    "backoff_jitter_max": 1.2,
}


def values_of(leases: LeaseSettings) -> dict[str, Any]:
    """Return the values of the settings by name."""
    return {name: getattr(leases, name) for name in TUNED_LEASES}


def test_leases_are_tuned_by_property() -> None:
    """O6: entitlement.outbox.* for the relay, notification.delivery.* for delivery, independent of each other."""
    relay = load(RelaySettings, {**SERVERS, **STREAM, "ENTITLEMENT_OUTBOX_TUNING": LEASES})
    assert values_of(relay.leases) == TUNED_LEASES
    delivery = load(DeliverySettings, {**SERVERS, "NOTIFICATION_DELIVERY_TUNING": LEASES})
    assert values_of(delivery.leases) == TUNED_LEASES
    other = load(DeliverySettings, {**SERVERS, "ENTITLEMENT_OUTBOX_TUNING": LEASES})
    assert values_of(other.leases) == values_of(load(DeliverySettings, SERVERS).leases)


def test_topology_is_tuned_by_property() -> None:
    """N2: entitlement.nats.* and notification.nats.*, with the same properties for both kinds of advisories."""
    advisories = "advisory.durable=a,advisory.max-age=3d,terminated-advisory.stream=T,terminated-advisory.durable=t"
    topology = load(
        TopologySettings,
        {
            **STREAM,
            "ENTITLEMENT_NATS_TUNING": "duplicate-window=20m, max-age=7d",
            "NOTIFICATION_NATS_TUNING": f"ack-wait=20s,max-deliver=9,fetch=500,{advisories},"
            "terminated-advisory.max-age=2d",
            "NOTIFICATION_NATS_ADVISORY_STREAM": "A",
        },
    )
    assert (topology.events.duplicate_window, topology.events.max_age) == (timedelta(minutes=20), timedelta(days=7))
    consumer = topology.consumer
    assert (consumer.ack_wait, consumer.max_deliver, consumer.fetch) == (timedelta(seconds=20), 9, 500)
    assert topology.advisories.consumers == {
        "MAX_DELIVERIES": AdvisoryConsumer("A", "a", timedelta(days=3)),
        "MSG_TERMINATED": AdvisoryConsumer("T", "t", timedelta(days=2)),
    }


def test_terminated_advisories_share_the_stream_by_default() -> None:
    """N2: with its max-age, and a consumer of their own."""
    environ = {"NOTIFICATION_NATS_ADVISORY_STREAM": "A", "NOTIFICATION_NATS_ADVISORY_MAX_AGE": "2d"}
    terminated = load(TopologySettings, STREAM | environ).advisories.consumers["MSG_TERMINATED"]
    assert terminated == AdvisoryConsumer("A", "terminated-recorder", timedelta(days=2))


@pytest.mark.parametrize(
    ("tuning", "problem"),
    [
        ("terminated-advisory.max-age=2d", "NOTIFICATION_NATS_TERMINATED_ADVISORY_MAX_AGE must be the same"),
        ("terminated-advisory.durable=max-deliveries-recorder", "TERMINATED_ADVISORY_DURABLE must differ"),
    ],
)
def test_contradictory_advisories_are_a_config_error(tuning: str, problem: str) -> None:
    """N2: one stream has one max-age, and two consumers have two names."""
    with pytest.raises(ConfigError, match=problem):
        load(TopologySettings, {**STREAM, "NOTIFICATION_NATS_TUNING": tuning})
    load(TopologySettings, {**STREAM, "NOTIFICATION_NATS_TUNING": f"{tuning},terminated-advisory.stream=T"})


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("ENTITLEMENT_OUTBOX_TUNING", "backoff-base=2", "ENTITLEMENT_OUTBOX_BACKOFF_BASE must be a duration"),
        ("ENTITLEMENT_OUTBOX_TUNING", "batch-size=5000", "ENTITLEMENT_OUTBOX_BATCH_SIZE must be between 1 and 1000"),
        ("ENTITLEMENT_OUTBOX_TUNING", "backoff-base=2m", "ENTITLEMENT_OUTBOX_BACKOFF_BASE must not exceed"),
        ("ENTITLEMENT_OUTBOX_TUNING", "backoff-max=10m", "ENTITLEMENT_NATS_DUPLICATE_WINDOW must exceed"),
        ("ENTITLEMENT_OUTBOX_TUNING", "batch=1", "ENTITLEMENT_OUTBOX_TUNING must be name=value"),
        ("ENTITLEMENT_OUTBOX_TUNING", "lease", "ENTITLEMENT_OUTBOX_TUNING must be name=value"),
        ("ENTITLEMENT_OUTBOX_TUNING", "lease=,batch-size=1", "ENTITLEMENT_OUTBOX_TUNING must be name=value"),
        ("ENTITLEMENT_OUTBOX_TUNING", "lease=1s,lease=2s", "ENTITLEMENT_OUTBOX_TUNING must be name=value"),
        ("ENTITLEMENT_OUTBOX_TUNING", "lease=1s,", "ENTITLEMENT_OUTBOX_TUNING must be name=value"),
        ("ENTITLEMENT_NATS_TUNING", "max-age=30d", "ENTITLEMENT_NATS_MAX_AGE must be shorter than"),
        ("NOTIFICATION_NATS_TUNING", "fetch=0", "NOTIFICATION_NATS_FETCH must be between 1 and 5000"),
    ],
)
def test_tuned_value_has_the_rules_of_its_variable(variable: str, value: str, problem: str) -> None:
    """O6, N2: a bad value stops the function, and the error names the variable."""
    with pytest.raises(ConfigError, match=problem):
        load(RelaySettings, {**SERVERS, **STREAM, variable: value})


def test_all_problems_of_a_list_are_reported_together() -> None:
    """O6: as for variables."""
    with pytest.raises(ConfigError) as caught:
        load(LeaseSettings, {"TUNING": "lease=0s,batch-size=0,max-attempts=x"})
    assert [problem.split()[0] for problem in caught.value.problems] == ["BATCH_SIZE", "LEASE", "MAX_ATTEMPTS"]


def test_variable_has_priority_over_the_list() -> None:
    """O6: an empty variable counts as missing."""
    tuned = load(LeaseSettings, {"TUNING": "lease=40s,batch-size=7", "LEASE": "50s", "BATCH_SIZE": " "})
    assert (tuned.lease, tuned.batch_size) == (timedelta(seconds=50), 7)


def test_sweep_compares_its_retention_with_the_tuned_stream() -> None:
    """N2: the inbox must remember an event for longer than the stream delivers it."""
    environ = {**SERVERS, "NOTIFICATION_RETENTION_RETENTION_DAYS": "20"}
    load(SweepSettings, {**environ, "ENTITLEMENT_NATS_TUNING": "max-age=19d"})
    with pytest.raises(ConfigError, match="NOTIFICATION_RETENTION_RETENTION_DAYS must be longer"):
        load(SweepSettings, {**environ, "ENTITLEMENT_NATS_TUNING": "max-age=20d"})
