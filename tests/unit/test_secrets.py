from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import boto3
import pytest
from aws_lambda_powertools.utilities.parameters import BaseProvider
from aws_lambda_powertools.utilities.parameters import base as powertools_parameters
from moto import mock_aws

from grantwire.errors import ConfigError, RetryableError
from grantwire.jetstream.settings import NatsEndpoint, parse_secret
from grantwire.secrets import SecretCache, database_url
from tests.support.concurrency import at_once
from tests.support.paths import PYTHONPATH

if TYPE_CHECKING:
    from datetime import tzinfo
    from typing import Self


@mock_aws
def test_a_secret_is_read_by_its_arn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a function with DATABASE_SECRET_ARN does."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    client = boto3.client("secretsmanager")
    arn = client.create_secret(Name="database", SecretString="postgresql://u:p@h/d")["ARN"]
    assert SecretCache().text(arn) == "postgresql://u:p@h/d"


@mock_aws
def test_a_secret_that_cannot_be_read_is_a_matter_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is told to come back; the log has the reason."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with pytest.raises(RetryableError):
        SecretCache().text("arn:aws:secretsmanager:us-east-1:123456789012:secret:none")


@pytest.mark.parametrize("url", ["postgresql://u:p@h/d", "postgres://u:p@h:6432/d?sslmode=verify-full"])
def test_a_url_is_taken_as_it_stands(url: str) -> None:
    """For those who keep one."""
    assert database_url(url) == url


def test_the_json_of_rds_becomes_a_url() -> None:
    """Whatever the generated password contains."""
    secret = {
        "username": "gw",
        "password": "p@:/?#[]%",
        "host": "db.internal",
        "port": 6432,
        "dbname": "rights",
    }
    assert database_url(json.dumps(secret)) == "postgresql://gw:p%40%3A%2F%3F%23%5B%5D%25@db.internal:6432/rights"
    short = {"username": "gw", "password": "p", "host": "h"}
    assert database_url(json.dumps(short)) == "postgresql://gw:p@h:5432/postgres"


@pytest.mark.parametrize("secret", ["", "hunter2", "[]", "{}", "null", '{"username":"u","password":"hunter2"}'])
def test_anything_else_is_a_clear_error_without_the_secret(secret: str) -> None:
    """The error is logged, so it must not quote what it could not read."""
    with pytest.raises(ConfigError, match="must be a postgresql:// URL or JSON") as caught:
        database_url(secret)
    assert "hunter2" not in str(caught.value)


@mock_aws
def test_a_secret_without_text_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting would not give it one."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    arn = boto3.client("secretsmanager").create_secret(Name="binary", SecretBinary=b"hunter2")["ARN"]
    with pytest.raises(ConfigError, match="has no text") as caught:
        SecretCache().text(arn)
    assert "hunter2" not in str(caught.value)


def test_without_a_region_it_is_a_matter_of_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client can be made: nothing of botocore's escapes."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(RetryableError):
        SecretCache().text("arn")


class Manager(BaseProvider):
    """A Secrets Manager behind Powertools' own cache, that counts; `clock` is the time of both."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.text, self.reads, self.away = "one", 0, False
        self.clock = clock
        self.cache = SecretCache(lambda: self, clock=lambda: clock.seconds)

    def _get(self, name: str, **_options: Any) -> str:
        assert name in {"a", "b"}
        self.reads += 1
        if self.away:
            raise TimeoutError("away")
        return self.text

    def _get_multiple(self, path: str, **_options: Any) -> dict[str, str]:
        raise NotImplementedError(path)


class Clock(datetime):
    """Takes the place of `datetime` in Powertools."""

    seconds = 0.0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        """A time that the test moves."""
        return cls.fromtimestamp(1_800_000_000 + cls.seconds, tz)


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    """With a clock that stands still."""

    class TestClock(Clock):
        seconds = 0.0

    monkeypatch.setattr(powertools_parameters, "datetime", TestClock)
    return Manager(cast("Clock", TestClock))


def test_a_secret_is_read_once_and_again_after_five_minutes(manager: Manager) -> None:
    """A connection costs no request to Secrets Manager; a changed host is noticed after a while."""
    assert [manager.cache.text("a"), manager.cache.text("a")] == ["one", "one"]
    manager.text, manager.clock.seconds = "two", 299.9
    assert (manager.cache.text("a"), manager.reads) == ("one", 1)
    manager.clock.seconds = 300.1
    assert (manager.cache.text("a"), manager.reads) == ("two", 2)


def test_an_old_text_serves_while_secrets_manager_is_away(manager: Manager) -> None:
    """Its outage is none of ours, unless nothing is known yet."""
    manager.cache.text("a")
    manager.away, manager.clock.seconds = True, 300.1
    assert manager.cache.text("a") == "one"
    with pytest.raises(RetryableError, match="temporarily unavailable"):
        manager.cache.text("b")


def test_a_refused_text_is_read_again_once_in_five_seconds(manager: Manager) -> None:
    """However often it is refused; and what is still the same is not worth another try."""
    manager.cache.text("a")
    assert [manager.cache.renewed("a", refused="one") for _ in range(10)] == [None] * 10
    assert manager.reads == 2
    manager.text = "two"
    manager.clock.seconds = 4.9
    assert manager.cache.renewed("a", refused="one") is None
    manager.clock.seconds = 5.0
    assert manager.cache.renewed("a", refused="one") == "two"
    assert (manager.cache.text("a"), manager.reads) == ("two", 3)


def test_a_reading_that_fails_counts_too(manager: Manager) -> None:
    """Secrets Manager is not asked for each request of a caller while it is away."""
    manager.cache.text("a")
    manager.away = True
    with pytest.raises(RetryableError, match="temporarily unavailable"):
        manager.cache.renewed("a", refused="one")
    assert (manager.cache.renewed("a", refused="one"), manager.reads) == (None, 2)


def test_what_one_thread_has_found_the_others_take(manager: Manager) -> None:
    """Eight are refused at once: one request, and each gets the new text."""
    assert at_once(8, lambda _: manager.cache.text("a")) == ["one"] * 8
    manager.text = "two"
    assert at_once(8, lambda _: manager.cache.renewed("a", refused="one")) == ["two"] * 8
    assert manager.reads == 2


PLACE = ("nats://n:4222",)


@pytest.mark.parametrize(
    ("secret", "access"),
    [
        ("nats://n", NatsEndpoint(PLACE)),
        (" tls://u:p%40%2F@a:1, tls://u:p%40%2F@[::1] ", NatsEndpoint(("tls://a:1", "tls://[::1]:4222"), "u", "p@/")),
        ("nats://u:p@a:1,nats://b:2", NatsEndpoint(("nats://a:1", "nats://b:2"), "u", "p")),
        ("nats://t%2B@n", NatsEndpoint(PLACE, token="t+")),
        ('{"url": "nats://n"}', NatsEndpoint(PLACE)),
        ('{"url": "nats://u:p@n"}', NatsEndpoint(PLACE, "u", "p")),
        ('{"url": "nats://n", "user": "u", "password": "%41"}', NatsEndpoint(PLACE, "u", "%41")),
        ('{"url": "nats://t@n", "user": "u", "password": "p"}', NatsEndpoint(PLACE, "u", "p")),
        ('{"url": "nats://n", "credentials": "c"}', NatsEndpoint(PLACE, credentials="c")),
    ],
)
def test_the_way_to_nats_is_understood_in_each_form(secret: str, access: NatsEndpoint) -> None:
    """Percent-encoding belongs to addresses, not to JSON."""
    assert parse_secret(secret) == access


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "hunter2",
        "http://u:hunter2@n",
        "nats://u:hunter2/@n",
        "nats://u:hunter2@n:port",
        "nats://u:hunter2@n/path",
        "nats://u:hunter2@[n",
        "nats://u:hunter2@a,nats://v:hunter2@b",
        "nats://u:hunter2@a,",
        "{hunter2",
        "{}",
        "[]",
        '{"url": 1}',
        '{"url": "hunter2"}',
        '{"url": "nats://n", "user": "hunter2"}',
        '{"url": "nats://n", "password": "hunter2"}',
        '{"url": "nats://n", "user": "u", "password": ""}',
        '{"url": "nats://n", "user": "u", "password": 1}',
        '{"url": "nats://n", "user": "u", "password": "hunter2", "credentials": "c"}',
    ],
)
def test_any_other_way_to_nats_is_a_clear_error_without_the_secret(secret: str) -> None:
    """Nor does the error remember what it came from."""
    with pytest.raises(ConfigError, match="the NATS secret must be") as caught:
        parse_secret(secret)
    assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r}"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_the_way_to_nats_does_not_show_its_credentials() -> None:
    """It is part of settings, which are printed when something goes wrong."""
    secrets = ("nats://hunter1:hunter2@n", "nats://hunter3@n", '{"url": "nats://n", "credentials": "hunter4"}')
    assert "hunter" not in repr([parse_secret(secret) for secret in secrets])


def test_what_only_some_need_is_not_imported_by_all() -> None:
    """The AWS SDK for a secret, and PyNaCl for a credentials file: each when there is one, not before."""
    program = "import sys; import grantwire.jetstream.connection, grantwire.database; print(*sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, check=True
    )
    loaded = set(answer.stdout.split())
    assert loaded >= {"psycopg", "nats"}
    assert not loaded & {"boto3", "botocore.session", "nacl"}
