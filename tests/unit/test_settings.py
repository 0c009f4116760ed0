from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from grantwire.database import DatabaseSettings
from grantwire.errors import ConfigError
from grantwire.jetstream.settings import NatsSettings
from grantwire.notifications.senders import SenderSettings
from grantwire.runtime.api import ApiSettings
from grantwire.settings import (
    certificates,
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

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Inner:
    """A group."""

    low: int = setting("LOW", integer(low=0, high=9), default="1")
    high: int = setting("HIGH", integer(low=0, high=9), default="5")

    def problems(self) -> Iterator[str]:
        """A rule that spans two variables."""
        if self.low > self.high:
            yield "LOW must not exceed HIGH"


@dataclass(frozen=True, slots=True)
class Outer:
    """Made of a group and its own variables."""

    name: str = setting("NAME", text)
    password: str | None = setting("PASSWORD", text, optional=True, secret=True)
    on: bool = setting("ON", flag, default="false")
    wait: timedelta = setting("WAIT", duration(low="10ms", high="1m"), default="200ms")
    inner: Inner = group(Inner)


def test_defaults_apply_and_values_replace_them() -> None:
    """What is not set has its default; what is set is parsed."""
    loaded = load(Outer, {"NAME": "n", "ON": "true", "HIGH": "7"})
    assert loaded == Outer("n", None, on=True, wait=timedelta(milliseconds=200), inner=Inner(1, 7))


def test_every_problem_is_named_at_once() -> None:
    """A person mends the environment once, not variable by variable."""
    with pytest.raises(ConfigError) as caught:
        load(Outer, {"NAME": " ", "ON": "yes", "WAIT": "2m", "LOW": "x", "HIGH": "10"})
    assert caught.value.problems == (
        "NAME is missing",
        "ON must be true or false, not 'yes'",
        "WAIT must be between 10ms and 1m, not 2m",
        "LOW must be a whole number, not 'x'",
        "HIGH must be between 0 and 9, not 10",
    )


def test_values_that_contradict_each_other_are_a_problem() -> None:
    """Each is fine alone."""
    with pytest.raises(ConfigError, match="LOW must not exceed HIGH"):
        load(Outer, {"NAME": "n", "LOW": "6"})


def test_an_empty_variable_is_a_missing_one() -> None:
    """A template cannot leave a variable out, it can only leave it empty."""
    assert load(Inner, {"LOW": ""}).low == 1


def test_a_secret_is_not_shown() -> None:
    """Settings are logged and printed when something goes wrong."""
    assert "hunter2" not in repr(load(Outer, {"NAME": "n", "PASSWORD": "hunter2"}))
    assert "hunter2" not in repr(load(ApiSettings, {"DATABASE_URL": "postgresql://u:hunter2@h/d"}))


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("200ms", 0.2), ("1s", 1), ("1.5s", 1.5), ("10m", 600), ("24h", 86400), ("30d", 2592000)],
)
def test_durations_are_written_with_their_unit(written: str, seconds: float) -> None:
    """O6: as the documents write them."""
    assert parse_duration(written) == timedelta(seconds=seconds)


@pytest.mark.parametrize("written", ["1", "s", "-1s", "1 s", "1w", "1s2s"])
def test_anything_else_is_not_a_duration(written: str) -> None:
    """A bare number would leave the unit to a guess."""
    with pytest.raises(ValueError, match="must be a duration such as"):
        parse_duration(written)


@pytest.mark.parametrize(
    "environ",
    [{}, {"DATABASE_URL": "postgresql://u@h/d", "DATABASE_SECRET_ARN": "arn:aws:secretsmanager:x"}],
    ids=["neither", "both"],
)
def test_there_is_one_way_to_the_database(environ: dict[str, str]) -> None:
    """A URL or a secret, not both and not none."""
    with pytest.raises(ConfigError, match="exactly one of DATABASE_URL and DATABASE_SECRET_ARN"):
        load(DatabaseSettings, environ)


def test_a_group_s_prefix_is_part_of_every_complaint() -> None:
    """The same group serves outbox and notifications; a person must know which of the two is meant."""

    @dataclass(frozen=True, slots=True)
    class Prefixed:
        """Made of a group with a prefix."""

        inner: Inner = group(Inner, prefix="OUTBOX_")

    with pytest.raises(ConfigError, match="OUTBOX_LOW must be a whole number"):
        load(Prefixed, {"OUTBOX_LOW": "x"})
    with pytest.raises(ConfigError, match="OUTBOX_LOW must not exceed OUTBOX_HIGH"):
        load(Prefixed, {"OUTBOX_LOW": "6"})
    assert load(Prefixed, {"LOW": "9"}).inner.low == 1


def test_a_kind_knows_its_variables() -> None:
    """What a function reads can be compared with what the template gives it."""
    assert [variable.name for variable in variables(Outer)] == [
        "NAME",
        "PASSWORD",
        "ON",
        "WAIT",
        "LOW",
        "HIGH",
    ]


def test_a_wait_for_a_key_ends_before_its_statement_does() -> None:
    """Otherwise the caller would be told that the database is down."""
    with pytest.raises(ConfigError, match="IDEMPOTENCY_LOCK_WAIT must be shorter"):
        load(ApiSettings, {"DATABASE_URL": "postgresql://u@h/d", "IDEMPOTENCY_LOCK_WAIT": "5s"})


@pytest.mark.parametrize("environ", [{}, {"NATS_URL": "nats://n", "NATS_SECRET_ARN": "arn"}], ids=["neither", "both"])
def test_there_is_one_way_to_nats(environ: dict[str, str]) -> None:
    """Addresses or a secret, not both and not none."""
    with pytest.raises(ConfigError, match="exactly one of NATS_URL and NATS_SECRET_ARN"):
        load(NatsSettings, environ)


WIRES = [(DatabaseSettings, "DATABASE", "postgresql://u@h/d"), (NatsSettings, "NATS", "nats://h")]


@pytest.mark.parametrize(("kind", "name", "url"), WIRES)
def test_nothing_travels_in_clear_unless_that_is_allowed_in_so_many_words(kind: type, name: str, url: str) -> None:
    """Off alone is not enough, nor is an address; and a mistyped word does not switch it off."""
    assert load(kind, {f"{name}_URL": url}).tls.startswith("verify")
    off = {f"{name}_URL": url, f"{name}_TLS": "off"}
    for allowed in ({}, {"PLAINTEXT_ALLOWED": "false"}, {"PLAINTEXT_ALLOWED": ""}):
        with pytest.raises(ConfigError, match=f"{name}_TLS=off needs PLAINTEXT_ALLOWED=true"):
            load(kind, off | allowed)
    assert load(kind, off | {"PLAINTEXT_ALLOWED": "true"}).tls == "off"
    for wrong in ("OFF", "no", "require", "prefer"):
        with pytest.raises(ConfigError, match=f"{name}_TLS must be verify"):
            load(kind, off | {f"{name}_TLS": wrong, "PLAINTEXT_ALLOWED": "true"})


@pytest.mark.parametrize(("kind", "name", "url"), WIRES)
def test_certificates_that_are_not_there_stop_a_function_at_once(
    kind: type, name: str, url: str, tmp_path: Path
) -> None:
    """Not with the first request; a file with something else in it is as good as none."""
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----")
    for wrong in ("nowhere.pem", str(tmp_path), str(tmp_path / "key.pem"), "System"):
        with pytest.raises(ConfigError, match=f"{name}_TLS_CA must be system, the path of a PEM file"):
            load(kind, {f"{name}_URL": url, f"{name}_TLS_CA": wrong})


def test_certificates_are_a_file_or_text(tmp_path: Path) -> None:
    """The text may stand on one line."""
    pem = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"
    (tmp_path / "ca.pem").write_text(f"# ours\n{pem}")
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
    ("kind", "name"),
    [(DatabaseSettings, "DATABASE_URL"), (NatsSettings, "NATS_URL"), (SenderSettings, "NOTIFICATION_WEBHOOK_URL")],
)
def test_a_problem_with_a_secret_does_not_quote_it(kind: type, name: str, value: str) -> None:
    """The problem is logged; libraries like to say what they could not read."""
    with pytest.raises(ConfigError, match=name) as caught:
        load(kind, {name: value})
    assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"


@pytest.mark.parametrize("host", ["", "h", "h:5432", "10.0.0.1:1", "[::1]", "[::1]:5432"])
def test_the_host_to_listen_at_is_a_host(host: str) -> None:
    """It replaces the one of the address; credentials stay those of the address."""
    assert load(DatabaseSettings, {"DATABASE_URL": "postgresql://u@h/d", "DATABASE_LISTEN_HOST": host}).listen_host == (
        host or None
    )


@pytest.mark.parametrize("host", ["postgresql://h", "u:p@h", "h:", "h:port", "h/d", "::1", "a,b"])
def test_anything_else_is_no_host_to_listen_at(host: str) -> None:
    """An address with credentials, above all."""
    with pytest.raises(ConfigError, match="DATABASE_LISTEN_HOST must be a host"):
        load(DatabaseSettings, {"DATABASE_URL": "postgresql://u@h/d", "DATABASE_LISTEN_HOST": host})
