"""O6, N2: the parameter `Settings`, a list of the variables that the template does not set by itself."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from grantwire.adjustable import ADJUSTABLE
from grantwire.clients.limits import LimitSettings
from grantwire.errors import ConfigError
from grantwire.jetstream.topology import AdvisoryConsumer, TopologySettings
from grantwire.settings import load, parse_list, variables
from grantwire.wiring.workers.deliver_notifications import DeliverySettings
from grantwire.wiring.workers.relay_outbox import RelaySettings
from grantwire.wiring.workers.run_operator_commands import OperatorCommandsSettings
from grantwire.wiring.workers.sweep_retention import SweepSettings
from infra.local.deployment.template import function_variables, load_template
from tests.support.plaintext import PLAINTEXT
from tests.unit.test_hostile_settings import SETTINGS_CLASSES

SERVERS = {**PLAINTEXT, "DATABASE_URL": "postgresql://u@h/d", "NATS_URL": "nats://n"}
STREAM = {
    "ENTITLEMENT_NATS_SUBJECT": "s",
    "ENTITLEMENT_NATS_STREAM": "E",
    "NOTIFICATION_NATS_STREAM": "E",
    "NOTIFICATION_NATS_DURABLE": "d",
}
PATTERN = load_template()["Parameters"]["Settings"]["AllowedPattern"]


def listed(prefix: str = "", **values: str) -> dict[str, str]:
    """Return the variable with a list of values."""
    return {"GRANTWIRE_SETTINGS": ",".join(f"{prefix}{name}={value}" for name, value in values.items())}


def test_list_sets_what_the_template_does_not_set() -> None:
    """Every variable of a function has one place: a parameter or a fixed value of the template, or the list."""
    read = {variable.name for settings_class in SETTINGS_CLASSES for variable in variables(settings_class)}
    fixed = {name for environment in function_variables(load_template()).values() for name in environment}
    assert read - fixed == ADJUSTABLE


def test_every_function_gets_the_list() -> None:
    """A setting such as the grace must be the same for all functions that read it."""
    environments = function_variables(load_template()).values()
    assert {str(environment["GRANTWIRE_SETTINGS"]) for environment in environments} == {"{'Ref': 'Settings'}"}


def test_each_function_takes_its_own_variables() -> None:
    """O6: entitlement.outbox.* for the relay, notification.delivery.* for delivery, independent of each other."""
    environ = SERVERS | STREAM | listed("ENTITLEMENT_OUTBOX_", BATCH_SIZE="100", LEASE="45s")
    relay = load(RelaySettings, environ).leases
    assert (relay.batch_size, relay.lease) == (100, timedelta(seconds=45))
    assert load(DeliverySettings, environ).leases == load(DeliverySettings, SERVERS).leases


def test_commands_are_polled_for_once_a_second_unless_the_list_says_otherwise() -> None:
    """Nobody waits for a command within milliseconds."""
    environ = SERVERS | STREAM
    assert load(OperatorCommandsSettings, environ).leases.poll_interval == timedelta(seconds=1)
    slower = environ | listed(OPERATOR_COMMAND_POLL_INTERVAL="2s")
    assert load(OperatorCommandsSettings, slower).leases.poll_interval == timedelta(seconds=2)


def test_topology_is_set_by_the_list() -> None:
    """N2: entitlement.nats.* and notification.nats.*, with the same properties for both kinds of advisories."""
    advisories = listed(
        "NOTIFICATION_NATS_",
        ADVISORY_DURABLE="a",
        ADVISORY_MAX_AGE="3d",
        TERMINATED_ADVISORY_STREAM="T",
        TERMINATED_ADVISORY_DURABLE="t",
        TERMINATED_ADVISORY_MAX_AGE="2d",
    )
    topology = load(TopologySettings, {**STREAM, **advisories, "NOTIFICATION_NATS_ADVISORY_STREAM": "A"})
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
    ("value", "problem"),
    [
        ({"MAX_AGE": "2d"}, "NOTIFICATION_NATS_TERMINATED_ADVISORY_MAX_AGE must be the same"),
        ({"DURABLE": "max-deliveries-recorder"}, "TERMINATED_ADVISORY_DURABLE must differ"),
    ],
)
def test_contradictory_advisories_are_a_config_error(value: dict[str, str], problem: str) -> None:
    """N2: one stream has one max-age, and two consumers have two names."""
    prefix = "NOTIFICATION_NATS_TERMINATED_ADVISORY_"
    with pytest.raises(ConfigError, match=problem):
        load(TopologySettings, STREAM | listed(prefix, **value))
    load(TopologySettings, STREAM | listed(prefix, **value, STREAM="T"))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("ENTITLEMENT_OUTBOX_BACKOFF_BASE=2", "ENTITLEMENT_OUTBOX_BACKOFF_BASE must be a duration"),
        ("ENTITLEMENT_OUTBOX_BATCH_SIZE=5000", "ENTITLEMENT_OUTBOX_BATCH_SIZE must be between 1 and 1000"),
        ("ENTITLEMENT_OUTBOX_BACKOFF_BASE=2m", "ENTITLEMENT_OUTBOX_BACKOFF_BASE must not exceed"),
        ("ENTITLEMENT_OUTBOX_BACKOFF_MAX=10m", "ENTITLEMENT_NATS_DUPLICATE_WINDOW must exceed"),
        ("ENTITLEMENT_NATS_MAX_AGE=30d", "ENTITLEMENT_NATS_MAX_AGE must be shorter than"),
        ("NOTIFICATION_NATS_FETCH=0", "NOTIFICATION_NATS_FETCH must be between 1 and 5000"),
    ],
)
def test_value_has_the_rules_of_its_variable(value: str, problem: str) -> None:
    """O6, N2: a bad value stops the function, and the error names the variable."""
    assert re.fullmatch(PATTERN, value)
    with pytest.raises(ConfigError, match=problem):
        load(RelaySettings, {**SERVERS, **STREAM, "GRANTWIRE_SETTINGS": value})


@pytest.mark.parametrize(
    "value",
    ["BATCH_SIZE", "RETENTION_BATCH_SIZE=", "RETENTION_BATCH_SIZE=1,", ",RETENTION_BATCH_SIZE=1", "=1", "retention=1"],
)
def test_incomplete_list_is_refused_by_cloudformation_and_by_every_function(value: str) -> None:
    """A missing value is an error, and not the default."""
    assert not re.fullmatch(PATTERN, value)
    with pytest.raises(ConfigError, match="GRANTWIRE_SETTINGS"):
        load(LimitSettings, {"GRANTWIRE_SETTINGS": value})


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("ENTITLEMENT_GRACES=1h", "cannot set 'ENTITLEMENT_GRACES'"),
        ("DATABASE_SECRET_ARN=arn:x", "cannot set 'DATABASE_SECRET_ARN'"),
        ("PLAINTEXT_ALLOWED=true", "cannot set 'PLAINTEXT_ALLOWED'"),
        ("GATEWAY_AUTHENTICATES=false", "cannot set 'GATEWAY_AUTHENTICATES'"),
        ("NOTIFICATION_INBOX_ENABLED=true", "cannot set 'NOTIFICATION_INBOX_ENABLED'"),
        ("CLIENT_RATE_LIMIT=1,CLIENT_RATE_LIMIT=2", "each name once"),
    ],
)
def test_wrong_name_stops_every_function(value: str, problem: str) -> None:
    """A function that does not read the variable refuses it, too: a typing error must not leave a default in place."""
    assert re.fullmatch(PATTERN, value)
    with pytest.raises(ConfigError, match=problem):
        load(LimitSettings, {"GRANTWIRE_SETTINGS": value})


def test_value_may_contain_an_equals_sign_and_line_breaks() -> None:
    """Certificates as PEM text."""
    pem = "-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----"
    value = f"CLIENT_RATE_LIMIT=7, DATABASE_TLS_CA={pem}"
    assert re.fullmatch(PATTERN, value)
    assert parse_list(value) == {"CLIENT_RATE_LIMIT": "7", "DATABASE_TLS_CA": pem}


def test_all_problems_of_a_list_are_reported_together() -> None:
    """O6: as for variables."""
    values = listed("NOTIFICATION_DELIVERY_", LEASE="0s", BATCH_SIZE="0", MAX_ATTEMPTS="x")
    with pytest.raises(ConfigError) as caught:
        load(DeliverySettings, SERVERS | values)
    assert [problem.split()[0].rpartition("DELIVERY_")[2] for problem in caught.value.problems] == [
        "BATCH_SIZE",
        "LEASE",
        "MAX_ATTEMPTS",
    ]


def test_variable_has_priority_over_the_list() -> None:
    """O6: an empty variable counts as missing."""
    own = {"CLIENT_RATE_LIMIT": "50", "CLIENT_BURST_LIMIT": " "}
    limits = load(LimitSettings, own | listed(CLIENT_RATE_LIMIT="40", CLIENT_BURST_LIMIT="70"))
    assert (limits.rate, limits.burst) == (50, 70)


def test_sweep_compares_its_retention_with_the_stream() -> None:
    """N2: the inbox must remember an event for longer than the stream delivers it."""
    environ = {**SERVERS, "NOTIFICATION_RETENTION_RETENTION_DAYS": "20"}
    load(SweepSettings, environ | listed(ENTITLEMENT_NATS_MAX_AGE="19d"))
    with pytest.raises(ConfigError, match="NOTIFICATION_RETENTION_RETENTION_DAYS must be longer"):
        load(SweepSettings, environ | listed(ENTITLEMENT_NATS_MAX_AGE="20d"))
