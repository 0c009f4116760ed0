"""Our signatures of requests to AWS equal those of botocore."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import psycopg
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from psycopg.conninfo import conninfo_to_dict

from grantwire.aws import Identity, configure, database_token, sign_request
from grantwire.database import DatabaseSettings, connect
from grantwire.errors import ConfigError
from grantwire.secrets import parse_database_secret
from grantwire.settings import load

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = datetime(2026, 3, 5, 7, 8, 9, tzinfo=UTC)
SECRET = "wJalr/XUtn+FEMI"  # pragma: allowlist secret
IDENTITIES = [
    Identity("eu-central-1", "AKIDEXAMPLE", SECRET),
    Identity("us-east-1", "ASIAEXAMPLE", SECRET, "token/with+signs=="),
]


def _credentials(identity: Identity) -> Credentials:
    return Credentials(identity.access_key, identity.secret_key, identity.session_token or None)


@pytest.fixture(autouse=True)
def _fixed_time() -> Iterator[None]:
    """Botocore reads the clock itself."""
    with patch("botocore.auth.get_current_datetime", lambda: NOW.replace(tzinfo=None)):
        yield


def test_database_token_is_that_of_botocore() -> None:
    """J2: the token of an IAM login, for names with special characters and with temporary credentials."""
    host, user = "grantwire.abc.eu-central-1.rds.amazonaws.com", "grant wire+~é/@"
    for identity in IDENTITIES:
        request = AWSRequest("GET", f"https://{host}:5432/", params={"Action": "connect", "DBUser": user})
        SigV4QueryAuth(_credentials(identity), "rds-db", identity.region, expires=900).add_auth(request)
        expected = request.prepare().url.removeprefix("https://")
        token = database_token(identity, host=host, port=5432, user=user, now=NOW)
        assert token.partition("?")[0] == expected.partition("?")[0]
        assert sorted(token.partition("?")[2].split("&")) == sorted(expected.partition("?")[2].split("&"))


def test_signed_request_is_that_of_botocore() -> None:
    """The header that Secrets Manager checks."""
    host, body = "secretsmanager.us-east-1.amazonaws.com", b'{"SecretId":"\xc3\xa9"}'
    headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "secretsmanager.GetSecretValue"}
    for identity in IDENTITIES:
        request = AWSRequest("POST", f"https://{host}/", headers=headers, data=body)
        SigV4Auth(_credentials(identity), "secretsmanager", identity.region).add_auth(request)
        signed = sign_request(identity, "secretsmanager", host=host, headers=headers, body=body, now=NOW)
        assert signed["authorization"] == request.headers["Authorization"]


def test_identity_hides_its_secrets_and_must_be_complete() -> None:
    """It may appear in a traceback."""
    environ = {
        "AWS_REGION": "r",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "s3cr3t",
        "AWS_SESSION_TOKEN": "t0k",
    }
    identity = Identity.from_environ(environ)
    assert identity == Identity("r", "a", "s3cr3t", "t0k")
    assert "s3cr3t" not in repr(identity)
    assert "t0k" not in repr(identity)
    for name in ("AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert Identity.from_environ(environ | {name: ""}) is None


def test_connection_with_iam_logs_in_with_a_token_for_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """J2: the user comes from the secret or the URL; LISTEN has another host, and so another token."""
    sent: list[dict[str, Any]] = []

    def refuse(address: str, **_options: object) -> None:
        sent.append(conninfo_to_dict(address))
        raise psycopg.OperationalError("refused")

    monkeypatch.setattr(psycopg.Connection, "connect", refuse)
    configure({"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET})
    environ = {
        "DATABASE_LOGIN": "iam",
        "DATABASE_URL": "postgresql://grantwire_service:ignored@proxy:6432/grantwire",
        "DATABASE_LISTEN_HOST": "database",
    }
    for listening in (False, True):
        with pytest.raises(psycopg.OperationalError):
            connect(load(DatabaseSettings, environ), application_name="test", listening=listening)
    configure({})
    assert [parts["sslmode"] for parts in sent] == ["verify-full"] * 2
    assert [parts["password"].partition("&X-Amz")[0] for parts in sent] == [
        "proxy:6432/?Action=connect&DBUser=grantwire_service",
        "database:6432/?Action=connect&DBUser=grantwire_service",
    ]


def test_iam_needs_tls_and_no_password() -> None:
    """J2: a token in clear text could be used by others for 15 minutes."""
    secret = '{"username":"grantwire_service","host":"h","dbname":"d"}'
    assert parse_database_secret(secret, needs_password=False) == "postgresql://grantwire_service:@h:5432/d"
    environ = {"DATABASE_URL": "postgresql://u@h/d", "DATABASE_LOGIN": "iam", "DATABASE_TLS": "off"}
    with pytest.raises(ConfigError, match="DATABASE_LOGIN=iam needs TLS"):
        load(DatabaseSettings, environ | {"PLAINTEXT_ALLOWED": "true"})
