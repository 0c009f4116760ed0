from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from grantwire.database import DatabaseSettings
from grantwire.errors import ConfigError
from grantwire.jetstream.settings import NatsSettings
from grantwire.notifications.senders import SenderSettings
from grantwire.settings import (
    duration,
    flag,
    group,
    integer,
    load,
    parse_duration,
    setting,
    text,
    variables,
)
from grantwire.tls import certificates
from grantwire.wiring.routes.entitlements import ApiSettings
from grantwire.wiring.workers.deliver_notifications import DeliverySettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Inner:
    """A group with two variables."""

    low: int = setting("LOW", integer(low=0, high=9), default="1")
    high: int = setting("HIGH", integer(low=0, high=9), default="5")

    def problems(self) -> Iterator[str]:
        """Yield a problem that involves two variables."""
        if self.low > self.high:
            yield "LOW must not exceed HIGH"


@dataclass(frozen=True, slots=True)
class Outer:
    """Settings with their own variables and a group."""

    name: str = setting("NAME", text)
    password: str | None = setting("PASSWORD", text, optional=True, secret=True)
    on: bool = setting("ON", flag, default="false")
    wait: timedelta = setting("WAIT", duration(low="10ms", high="1m"), default="200ms")
    inner: Inner = group(Inner)


def test_defaults_apply_and_values_replace_them() -> None:
    """A variable that is not set has its default; a set variable is parsed."""
    loaded = load(Outer, {"NAME": "n", "ON": "true", "HIGH": "7"})
    assert loaded == Outer("n", None, on=True, wait=timedelta(milliseconds=200), inner=Inner(1, 7))


def test_one_error_names_every_problem() -> None:
    """An operator can correct all variables together."""
    with pytest.raises(ConfigError) as caught:
        load(Outer, {"NAME": " ", "ON": "yes", "WAIT": "2m", "LOW": "x", "HIGH": "10"})
    assert caught.value.problems == (
        "NAME is missing",
        "ON must be true or false, not 'yes'",
        "WAIT must be between 10ms and 1m, not 2m",
        "LOW must be a whole number, not 'x'",
        "HIGH must be between 0 and 9, not 10",
    )


def test_contradicting_values_are_a_config_error() -> None:
    """Each value is valid on its own."""
    with pytest.raises(ConfigError, match="LOW must not exceed HIGH"):
        load(Outer, {"NAME": "n", "LOW": "6"})


def test_empty_variable_counts_as_missing() -> None:
    """The template sets an empty variable where its parameter is empty."""
    assert load(Inner, {"LOW": ""}).low == 1


def test_repr_of_settings_hides_secrets() -> None:
    """Settings can appear in logs and error output."""
    assert "hunter2" not in repr(load(Outer, {"NAME": "n", "PASSWORD": "hunter2"}))
    assert "hunter2" not in repr(load(ApiSettings, {"DATABASE_URL": "postgresql://u:hunter2@h/d"}))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("200ms", 0.2), ("1s", 1), ("1.5s", 1.5), ("10m", 600), ("24h", 86400), ("30d", 2592000)],
)
def test_durations_have_a_unit(value: str, seconds: float) -> None:
    """O6: the formats that the documentation names are accepted."""
    assert parse_duration(value) == timedelta(seconds=seconds)


@pytest.mark.parametrize("value", ["1", "s", "-1s", "1 s", "1w", "1s2s"])
def test_invalid_duration_is_rejected(value: str) -> None:
    """A number without a unit is invalid too."""
    with pytest.raises(ValueError, match="must be a duration such as"):
        parse_duration(value)


@pytest.mark.parametrize(
    "environ",
    [{}, {"DATABASE_URL": "postgresql://u@h/d", "DATABASE_SECRET_ARN": "arn:aws:secretsmanager:x"}],
    ids=["neither", "both"],
)
def test_exactly_one_of_database_url_and_secret_is_required(environ: dict[str, str]) -> None:
    """Neither and both are config errors."""
    with pytest.raises(ConfigError, match="exactly one of DATABASE_URL and DATABASE_SECRET_ARN"):
        load(DatabaseSettings, environ)


def test_problems_name_variables_with_the_prefix_of_the_group() -> None:
    """Outbox and delivery use the same group, so a problem must say which variable is meant."""

    @dataclass(frozen=True, slots=True)
    class Prefixed:
        """Settings with a group that has a prefix."""

        inner: Inner = group(Inner, prefix="OUTBOX_")

    with pytest.raises(ConfigError, match="OUTBOX_LOW must be a whole number"):
        load(Prefixed, {"OUTBOX_LOW": "x"})
    with pytest.raises(ConfigError, match="OUTBOX_LOW must not exceed OUTBOX_HIGH"):
        load(Prefixed, {"OUTBOX_LOW": "6"})
    assert load(Prefixed, {"LOW": "9"}).inner.low == 1


def test_variables_lists_own_variables_and_those_of_groups() -> None:
    """Tests compare this list with the variables in the template."""
    assert [variable.name for variable in variables(Outer)] == [
        "NAME",
        "PASSWORD",
        "ON",
        "WAIT",
        "LOW",
        "HIGH",
    ]


def test_lock_wait_must_be_shorter_than_statement_timeout() -> None:
    """Otherwise the response would say that the database is unavailable."""
    with pytest.raises(ConfigError, match="IDEMPOTENCY_LOCK_WAIT must be shorter"):
        load(ApiSettings, {"DATABASE_URL": "postgresql://u@h/d", "IDEMPOTENCY_LOCK_WAIT": "5s"})


@pytest.mark.parametrize("environ", [{}, {"NATS_URL": "nats://n", "NATS_SECRET_ARN": "arn"}], ids=["neither", "both"])
def test_exactly_one_of_nats_url_and_secret_is_required(environ: dict[str, str]) -> None:
    """Neither and both are config errors."""
    with pytest.raises(ConfigError, match="exactly one of NATS_URL and NATS_SECRET_ARN"):
        load(NatsSettings, environ)


CONNECTIONS = [(DatabaseSettings, "DATABASE", "postgresql://u@h/d"), (NatsSettings, "NATS", "nats://h")]


@pytest.mark.parametrize(("settings_class", "name", "url"), CONNECTIONS)
def test_tls_is_required_unless_plaintext_is_explicitly_allowed(settings_class: type, name: str, url: str) -> None:
    """TLS=off also needs PLAINTEXT_ALLOWED=true; an unknown value of TLS is a config error."""
    assert load(settings_class, {f"{name}_URL": url}).tls.startswith("verify")
    off = {f"{name}_URL": url, f"{name}_TLS": "off"}
    for allowed in ({}, {"PLAINTEXT_ALLOWED": "false"}, {"PLAINTEXT_ALLOWED": ""}):
        with pytest.raises(ConfigError, match=f"{name}_TLS=off needs PLAINTEXT_ALLOWED=true"):
            load(settings_class, off | allowed)
    assert load(settings_class, off | {"PLAINTEXT_ALLOWED": "true"}).tls == "off"
    for wrong in ("OFF", "no", "require", "prefer"):
        with pytest.raises(ConfigError, match=f"{name}_TLS must be verify"):
            load(settings_class, off | {f"{name}_TLS": wrong, "PLAINTEXT_ALLOWED": "true"})


@pytest.mark.parametrize(("settings_class", "name", "url"), CONNECTIONS)
def test_unreadable_certificate_file_is_a_config_error(
    settings_class: type, name: str, url: str, tmp_path: Path
) -> None:
    """A file without certificates is invalid too. The function stops in the init phase, not at the first request."""
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----")  # pragma: allowlist secret
    for wrong in ("nowhere.pem", str(tmp_path), str(tmp_path / "key.pem"), "System"):
        with pytest.raises(ConfigError, match=f"{name}_TLS_CA must be system, the path of a readable file"):
            load(settings_class, {f"{name}_URL": url, f"{name}_TLS_CA": wrong})


def test_certificates_may_be_a_file_or_text(tmp_path: Path) -> None:
    """The text may be one line with escaped line breaks."""
    pem = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"
    (tmp_path / "ca.pem").write_text(f"# comment\n{pem}")
    assert certificates(str(tmp_path / "ca.pem")).file == str(tmp_path / "ca.pem")
    assert certificates(pem).text == certificates(pem.replace("\n", "\\n")).text == pem


@pytest.mark.parametrize(
    "value",
    [
        "hunter2",
        "hunter2=1",
        "://hunter2",
        "postgresql://u:hunter2@h:port/d",
        "postgresql://u:hunter2%@h/d",
        "postgresql://u:a/hunter2@h/d",
        "postgresql://h/d?password=%zzhunter2",
        "postgresql://h/d?hunter2",
        "host=h password=hunter2",
        "nats://u:a/hunter2@h",
        "nats://u:hunter2@h:port",
        "nats://u:hunter2@[h",
        "nats://u:hunter2@\u2100",
        "https://u:hunter2@h:port",
    ],
)
@pytest.mark.parametrize(
    ("settings_class", "name"),
    [(DatabaseSettings, "DATABASE_URL"), (NatsSettings, "NATS_URL"), (SenderSettings, "NOTIFICATION_WEBHOOK_URL")],
)
def test_problem_with_a_url_does_not_quote_its_password(settings_class: type, name: str, value: str) -> None:
    """The problem is logged, and errors of libraries often contain the value."""
    with pytest.raises(ConfigError, match=name) as caught:
        load(settings_class, {name: value})
    assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"


@pytest.mark.parametrize("host", ["", "h", "h:5432", "10.0.0.1:1", "[::1]", "[::1]:5432"])
def test_listen_host_may_be_a_host_with_optional_port(host: str) -> None:
    """It replaces the host of the database URL; an empty value counts as missing."""
    assert load(DatabaseSettings, {"DATABASE_URL": "postgresql://u@h/d", "DATABASE_LISTEN_HOST": host}).listen_host == (
        host or None
    )


@pytest.mark.parametrize("host", ["postgresql://h", "u:p@h", "h:", "h:port", "h/d", "::1", "a,b"])
def test_invalid_listen_host_is_a_config_error(host: str) -> None:
    """This includes a URL and a host with credentials."""
    with pytest.raises(ConfigError, match="DATABASE_LISTEN_HOST must be a host"):
        load(DatabaseSettings, {"DATABASE_URL": "postgresql://u@h/d", "DATABASE_LISTEN_HOST": host})


def test_defaults_of_a_group_replace_those_of_its_class() -> None:
    """D2: delivery is more patient than the relay. Variables and the list still win."""
    environ = {"DATABASE_URL": "postgresql://h/d"}
    listed = {"GRANTWIRE_SETTINGS": "NOTIFICATION_DELIVERY_MAX_ATTEMPTS=7"}
    default, tuned = (load(DeliverySettings, environ | more) for more in ({}, listed))
    assert (default.leases.max_attempts, default.leases.backoff_max) == (300, timedelta(minutes=10))
    assert (tuned.leases.max_attempts, tuned.leases.backoff_max) == (7, timedelta(minutes=10))
    assert {v.name: v.default for v in variables(DeliverySettings)}["NOTIFICATION_DELIVERY_MAX_ATTEMPTS"] == "300"


def test_delivery_is_retried_for_at_least_a_day() -> None:
    """D2: also if the random factor is the smallest one each time."""
    leases = load(DeliverySettings, {"DATABASE_URL": "postgresql://h/d"}).leases
    delays = [leases.backoff.delay(attempt, lambda: 0.0) for attempt in range(1, leases.max_attempts)]
    assert sum(delays, timedelta()) > timedelta(hours=24)
