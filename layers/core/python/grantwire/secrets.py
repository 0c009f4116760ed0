"""Secrets from AWS Secrets Manager, cached for each execution environment.

Powertools' `parameters` reads and caches the values. A rotated secret needs neither a deployment nor a restart: the
cache is refreshed when a server rejects the cached credentials, and an entry expires after five minutes. If Secrets
Manager is unavailable, the last known value is used.

Powertools imports boto3, which adds half a second to a cold start. So both are imported only to read a secret.
"""

from __future__ import annotations

import json
import threading
import time
from math import inf
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from grantwire.errors import ConfigError, RetryableError
from grantwire.observability import logger

if TYPE_CHECKING:
    from collections.abc import Callable

# A changed password is detected immediately, because the server rejects the old one. A changed host is not, so entries
# expire.
_MAX_AGE_SECONDS = 300

# If the password stays wrong, requests of callers must not each cause a request to Secrets Manager.
_MIN_REFRESH_INTERVAL_SECONDS = 5.0


# While Secrets Manager is unavailable, each attempt to read can take several seconds.
_RETRY_INTERVAL_SECONDS = 30.0


class SecretReader(Protocol):
    """The method of Powertools' parameter providers that SecretCache uses."""

    def get(self, name: str, max_age: int | None = None, *, force_fetch: bool = False) -> object:
        """Return the value, from the provider's cache if it is at most `max_age` seconds old.

        Raises GetParameterError or BotoCoreError if the value cannot be read.
        """


def create_secrets_provider() -> SecretReader:
    """Create Powertools' provider for AWS Secrets Manager, with timeouts shorter than any function timeout."""
    from aws_lambda_powertools.utilities.parameters import SecretsProvider  # noqa: PLC0415 - see the module docstring
    from botocore.config import Config  # noqa: PLC0415

    timeouts = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 2})
    provider: SecretReader = SecretsProvider(boto_config=timeouts)
    return provider


class SecretCache:
    """The secrets of one execution environment. Safe to share between threads."""

    def __init__(
        self,
        create_provider: Callable[[], SecretReader] = create_secrets_provider,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._create_provider = create_provider
        self._provider: SecretReader | None = None
        self._clock = clock
        self._last_known: dict[str, str] = {}
        self._refreshed_at: dict[str, float] = {}
        self._failed_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def get(self, arn: str) -> str:
        """Return the secret, at most five minutes old; an older value only while Secrets Manager is unavailable.

        After a failure the older value is used for half a minute before the next attempt. Raises RetryableError if the
        secret cannot be read and no older value exists, ConfigError if it is not text.
        """
        with self._lock:
            known = self._last_known.get(arn)
            if known is not None and self._clock() < self._failed_at.get(arn, -inf) + _RETRY_INTERVAL_SECONDS:
                return known
            try:
                return self._read(arn)
            except RetryableError:
                if known is None:
                    raise
                self._failed_at[arn] = self._clock()
                return known

    def refresh(self, arn: str, *, rejected: str) -> str | None:
        """Return the value that replaced `rejected`, which a server did not accept; None if there is no new value.

        Reads the secret at most once in five seconds, no matter how many calls there are. Raises RetryableError if it
        cannot be read.
        """
        with self._lock:
            known, now = self._last_known.get(arn), self._clock()
            if known is not None and known != rejected:
                return known
            if arn in self._refreshed_at and now < self._refreshed_at[arn] + _MIN_REFRESH_INTERVAL_SECONDS:
                return None
            self._refreshed_at[arn] = now
            secret = self._read(arn, force_fetch=True)
            return secret if secret != rejected else None

    def _read(self, arn: str, *, force_fetch: bool = False) -> str:
        """Read the secret through the provider, which caches it, and remember it as the last known value."""
        from aws_lambda_powertools.utilities.parameters import GetParameterError  # noqa: PLC0415 - see the module docstring
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415

        try:
            if self._provider is None:
                self._provider = self._create_provider()
            value = self._provider.get(arn, max_age=_MAX_AGE_SECONDS, force_fetch=force_fetch)
        except (GetParameterError, BotoCoreError) as error:  # the call failed, or no client could be created
            logger.error("could not read secret", arn=arn, reason=str(error))
            raise RetryableError("temporarily unavailable, send the same request again") from error
        if not isinstance(value, str):
            raise ConfigError([f"secret {arn} must be text, not binary"])
        self._last_known[arn] = value
        self._failed_at.pop(arn, None)
        return value


secret_cache = SecretCache()


def parse_database_secret(secret: str, *, needs_password: bool = True) -> str:
    """Return the PostgreSQL URL of a secret, which is a URL or the JSON that RDS stores.

    A login with IAM needs no password. Raises ConfigError, without the secret in its text, for anything else.
    """
    if secret.startswith(("postgres://", "postgresql://")):
        return secret
    try:
        parts = json.loads(secret)
        password = parts["password"] if needs_password else ""
        user, password, host = (quote(str(part), safe="") for part in (parts["username"], password, parts["host"]))
        port, name = int(parts.get("port", 5432)), quote(str(parts.get("dbname", "postgres")), safe="")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ConfigError(
            ["the database secret must be a postgresql:// URL or JSON with username, password and host"]
        ) from None
    return f"postgresql://{user}:{password}@{host}:{port}/{name}"
