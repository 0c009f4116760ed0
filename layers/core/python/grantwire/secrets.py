"""Secrets by ARN. boto3 costs half a second of a cold start, so it is imported only when there is one to read."""

from __future__ import annotations

import json
from urllib.parse import quote

from grantwire.errors import ConfigError, RetryableError
from grantwire.observability import log


def read_secret(arn: str) -> str:
    """The current text of a secret in AWS Secrets Manager."""
    import boto3  # noqa: PLC0415 - see the module's docstring
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    # boto's own limits are longer than a function lives.
    limits = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 2})
    try:
        return boto3.client("secretsmanager", config=limits).get_secret_value(SecretId=arn)["SecretString"]
    except (BotoCoreError, ClientError) as error:
        log.error("a secret cannot be read", arn=arn, reason=str(error))
        raise RetryableError("temporarily unavailable, send the same request again") from error


def database_url(secret: str) -> str:
    """A PostgreSQL URL from a secret's text: a URL as it stands, or the JSON that RDS keeps."""
    if secret.startswith(("postgres://", "postgresql://")):
        return secret
    try:
        parts = json.loads(secret)
        user, password, host = (quote(str(parts[name]), safe="") for name in ("username", "password", "host"))
        return f"postgresql://{user}:{password}@{host}:{parts.get('port', 5432)}/{parts.get('dbname', 'postgres')}"
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ConfigError(
            ["the database secret must be a postgresql:// URL or JSON with username, password and host"]
        ) from None
