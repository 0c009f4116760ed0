from __future__ import annotations

import json

import boto3
import pytest
from moto import mock_aws

from grantwire.errors import ConfigError, RetryableError
from grantwire.secrets import database_url, read_secret


@mock_aws
def test_a_secret_is_read_by_its_arn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a function with DATABASE_SECRET_ARN does."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    client = boto3.client("secretsmanager")
    arn = client.create_secret(Name="database", SecretString="postgresql://u:p@h/d")["ARN"]
    assert read_secret(arn) == "postgresql://u:p@h/d"


@mock_aws
def test_a_secret_that_cannot_be_read_is_a_matter_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is told to come back; the log has the reason."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with pytest.raises(RetryableError):
        read_secret("arn:aws:secretsmanager:us-east-1:123456789012:secret:none")


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
