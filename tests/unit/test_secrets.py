from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from grantwire.errors import ConfigError, RetryableError
from grantwire.jetstream.settings import NatsEndpoint, parse_secret
from grantwire.secrets import SecretCache, parse_database_secret
from tests.support.concurrency import run_concurrently
from tests.support.paths import PYTHONPATH

if TYPE_CHECKING:
    from tests.support.secrets_manager import FakeSecretsManager


def test_secret_is_read_by_arn(secrets_manager: FakeSecretsManager) -> None:
    """A function with DATABASE_SECRET_ARN reads its secret this way."""
    arn = secrets_manager.store("database", "postgresql://u:p@h/d")
    assert SecretCache().get(arn) == "postgresql://u:p@h/d"


def test_unreadable_secret_is_a_retryable_error(
    secrets_manager: FakeSecretsManager, capsys: pytest.CaptureFixture[str]
) -> None:
    """The caller gets a retryable error; the log has the reason. A server error is tried twice, another one once."""
    with pytest.raises(RetryableError, match="temporarily unavailable"):
        SecretCache().get("arn:aws:secretsmanager:us-east-1:123456789012:secret:none")
    assert "status 400, ResourceNotFoundException" in capsys.readouterr().out
    assert secrets_manager.requests == 1
    secrets_manager.is_down = True
    with pytest.raises(RetryableError, match="temporarily unavailable"):
        SecretCache().get("arn:aws:secretsmanager:us-east-1:123456789012:secret:none")
    assert secrets_manager.requests == 3


@pytest.mark.parametrize("url", ["postgresql://u:p@h/d", "postgres://u:p@h:6432/d?sslmode=verify-full"])
def test_database_secret_may_be_a_url(url: str) -> None:
    """A URL is returned unchanged."""
    assert parse_database_secret(url) == url


def test_database_secret_may_be_json_of_rds() -> None:
    """Every character of a generated password is percent-encoded; port and database name are optional."""
    secret = {
        "username": "gw",
        "password": "p@:/?#[]%",
        "host": "db.internal",
        "port": 6432,
        "dbname": "entitlements",
    }
    assert (
        parse_database_secret(json.dumps(secret))
        == "postgresql://gw:p%40%3A%2F%3F%23%5B%5D%25@db.internal:6432/entitlements"
    )
    short = {"username": "gw", "password": "p", "host": "h"}
    assert parse_database_secret(json.dumps(short)) == "postgresql://gw:p@h:5432/postgres"


@pytest.mark.parametrize("secret", ["", "hunter2", "[]", "{}", "null", '{"username":"u","password":"hunter2"}'])
def test_invalid_database_secret_is_not_quoted_in_the_error(secret: str) -> None:
    """The error is logged, so it must not contain the secret."""
    with pytest.raises(ConfigError, match="must be a postgresql:// URL or JSON") as caught:
        parse_database_secret(secret)
    assert "hunter2" not in str(caught.value)


def test_binary_secret_is_a_config_error() -> None:
    """A retry would not help."""
    with pytest.raises(ConfigError, match="must be text, not binary") as caught:
        SecretCache(lambda _arn: {"SecretBinary": "hunter2"}).get("arn")
    assert "hunter2" not in str(caught.value)


def test_missing_identity_is_a_retryable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither Lambda nor a profile of boto3 gives one."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(RetryableError):
        SecretCache().get("arn")


class Manager:
    """A fake Secrets Manager, which counts reads, behind a cache whose clock the test sets."""

    def __init__(self) -> None:
        self.secret, self.reads, self.is_down, self.seconds = "one", 0, False, 0.0
        self.cache = SecretCache(self._read, clock=lambda: self.seconds)

    def _read(self, arn: str) -> dict[str, str]:
        assert arn in {"a", "b"}
        self.reads += 1
        if self.is_down:
            raise RetryableError("down")
        return {"SecretString": self.secret}


@pytest.fixture
def manager() -> Manager:
    """A fake Secrets Manager whose clock starts at 0."""
    return Manager()


def test_secret_is_cached_for_five_minutes(manager: Manager) -> None:
    """Most connections need no request to Secrets Manager; a changed host is detected after five minutes."""
    assert [manager.cache.get("a"), manager.cache.get("a")] == ["one", "one"]
    manager.secret, manager.seconds = "two", 299.9
    assert (manager.cache.get("a"), manager.reads) == ("one", 1)
    manager.seconds = 300.1
    assert (manager.cache.get("a"), manager.reads) == ("two", 2)


def test_last_known_value_is_used_while_secrets_manager_is_unavailable(manager: Manager) -> None:
    """Without a known value it is a retryable error."""
    manager.cache.get("a")
    manager.is_down, manager.seconds = True, 300.1
    assert manager.cache.get("a") == "one"
    with pytest.raises(RetryableError, match="temporarily unavailable"):
        manager.cache.get("b")


def test_unavailable_secrets_manager_is_tried_every_half_minute(manager: Manager) -> None:
    """Each attempt can take seconds, and delivery reads its secret before each claim."""
    manager.cache.get("a")
    manager.is_down, manager.seconds = True, 300.1
    assert [manager.cache.get("a") for _ in range(10)] == ["one"] * 10
    assert manager.reads == 2
    manager.is_down, manager.secret = False, "two"
    manager.seconds = 330.0
    assert (manager.cache.get("a"), manager.reads) == ("one", 2)
    manager.seconds = 330.2
    assert (manager.cache.get("a"), manager.reads) == ("two", 3)


def test_refresh_reads_the_secret_at_most_once_in_five_seconds(manager: Manager) -> None:
    """The number of calls does not matter; None is returned while the secret has not changed."""
    manager.cache.get("a")
    assert [manager.cache.refresh("a", rejected="one") for _ in range(10)] == [None] * 10
    assert manager.reads == 2
    manager.secret = "two"
    manager.seconds = 4.9
    assert manager.cache.refresh("a", rejected="one") is None
    manager.seconds = 5.0
    assert manager.cache.refresh("a", rejected="one") == "two"
    assert (manager.cache.get("a"), manager.reads) == ("two", 3)


def test_failed_refresh_counts_for_the_limit(manager: Manager) -> None:
    """While Secrets Manager is unavailable, requests of callers do not each cause a request to it."""
    manager.cache.get("a")
    manager.is_down = True
    with pytest.raises(RetryableError, match="temporarily unavailable"):
        manager.cache.refresh("a", rejected="one")
    assert (manager.cache.refresh("a", rejected="one"), manager.reads) == (None, 2)


def test_threads_share_one_refresh(manager: Manager) -> None:
    """Eight threads refresh at the same time: one request, and each gets the new value."""
    assert run_concurrently(8, lambda _: manager.cache.get("a")) == ["one"] * 8
    manager.secret = "two"
    assert run_concurrently(8, lambda _: manager.cache.refresh("a", rejected="one")) == ["two"] * 8
    assert manager.reads == 2


SERVERS = ("nats://n:4222",)


@pytest.mark.parametrize(
    ("secret", "endpoint"),
    [
        ("nats://n", NatsEndpoint(SERVERS)),
        (" tls://u:p%40%2F@a:1, tls://u:p%40%2F@[::1] ", NatsEndpoint(("tls://a:1", "tls://[::1]:4222"), "u", "p@/")),
        ("nats://u:p@a:1,nats://b:2", NatsEndpoint(("nats://a:1", "nats://b:2"), "u", "p")),
        ("nats://t%2B@n", NatsEndpoint(SERVERS, token="t+")),
        ('{"url": "nats://n"}', NatsEndpoint(SERVERS)),
        ('{"url": "nats://u:p@n"}', NatsEndpoint(SERVERS, "u", "p")),
        ('{"url": "nats://n", "user": "u", "password": "%41"}', NatsEndpoint(SERVERS, "u", "%41")),
        ('{"url": "nats://t@n", "user": "u", "password": "p"}', NatsEndpoint(SERVERS, "u", "p")),
        ('{"url": "nats://n", "credentials": "c"}', NatsEndpoint(SERVERS, credentials="c")),
    ],
)
def test_nats_secret_is_parsed_in_each_format(secret: str, endpoint: NatsEndpoint) -> None:
    """Values are percent-decoded in URLs, not in JSON."""
    assert parse_secret(secret) == endpoint


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
def test_invalid_nats_secret_is_not_quoted_in_the_error(secret: str) -> None:
    """The causes of the error do not contain it either."""
    with pytest.raises(ConfigError, match="the NATS secret must be") as caught:
        parse_secret(secret)
    assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r}"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_repr_of_nats_credentials_hides_them() -> None:
    """They are part of settings, which appear in error output."""
    secrets = ("nats://hunter1:hunter2@n", "nats://hunter3@n", '{"url": "nats://n", "credentials": "hunter4"}')
    assert "hunter" not in repr([parse_secret(secret) for secret in secrets])


def test_optional_dependencies_are_imported_only_when_needed() -> None:
    """The AWS SDK is imported for the profile of an operator, PyNaCl to read a credentials file."""
    program = "import sys; import grantwire.jetstream.connection, grantwire.database; print(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, check=True
    )
    loaded = set(process.stdout.split())
    assert loaded >= {"psycopg", "nats"}
    assert not loaded & {"boto3", "botocore.session", "nacl"}
