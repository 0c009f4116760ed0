"""Secrets by ARN: read once for each execution environment, and again when they may have been rotated.

Powertools' `parameters` reads and keeps them. A rotation needs neither a deployment nor a restart: a server that
refuses what is kept makes it be read again, and nothing is kept for longer than five minutes while Secrets Manager
answers. Powertools imports boto3 for it, which costs half a second of a cold start, so it is imported only when there
is a secret to read.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from grantwire.errors import ConfigError, RetryableError
from grantwire.observability import logger

if TYPE_CHECKING:
    from collections.abc import Callable

# A changed host is noticed after this; a changed password at once.
_MAX_AGE_SECONDS = 300

# A password that stays wrong must not become a request to Secrets Manager for each request of a caller.
_RENEWAL_INTERVAL_SECONDS = 5.0


class SecretReader(Protocol):
    """What Powertools' providers of parameters offer."""

    def get(self, name: str, max_age: int | None = None, *, force_fetch: bool = False) -> object:
        """Return a value at most `max_age` seconds old, or a new one; raise an error if it cannot be read."""


def secrets_manager() -> SecretReader:
    """Create Powertools' provider for AWS Secrets Manager, with limits shorter than a function lives."""
    from aws_lambda_powertools.utilities.parameters import SecretsProvider  # noqa: PLC0415 - see the module's docstring
    from botocore.config import Config  # noqa: PLC0415

    limits = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 2})
    provider: SecretReader = SecretsProvider(boto_config=limits)
    return provider


class SecretCache:
    """The secrets of one execution environment; its threads may share it."""

    def __init__(
        self,
        provider: Callable[[], SecretReader] = secrets_manager,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._create = provider
        self._provider: SecretReader | None = None
        self._clock = clock
        self._last_known: dict[str, str] = {}
        self._renewed_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def text(self, arn: str) -> str:
        """Return a secret's text, at most five minutes old; an older one only while Secrets Manager does not answer.

        Raises RetryableError if it was never read and cannot be read now, ConfigError if it is no text.
        """
        with self._lock:
            try:
                return self._read(arn)
            except RetryableError:
                if arn not in self._last_known:
                    raise
                return self._last_known[arn]

    def renewed(self, arn: str, *, refused: str) -> str | None:
        """Return the text that replaced one that a server refused; None if there is none yet.

        Read again at most once in five seconds, however often it is refused. Raises RetryableError if that failed.
        """
        with self._lock:
            known, now = self._last_known.get(arn), self._clock()
            if known is not None and known != refused:
                return known
            if arn in self._renewed_at and now < self._renewed_at[arn] + _RENEWAL_INTERVAL_SECONDS:
                return None
            self._renewed_at[arn] = now
            text = self._read(arn, force_fetch=True)
            return text if text != refused else None

    def _read(self, arn: str, *, force_fetch: bool = False) -> str:
        """Ask the provider, which keeps what it has read."""
        from aws_lambda_powertools.utilities.parameters import GetParameterError  # noqa: PLC0415 - as in secrets_manager
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415

        try:
            if self._provider is None:
                self._provider = self._create()
            value = self._provider.get(arn, max_age=_MAX_AGE_SECONDS, force_fetch=force_fetch)
        except (GetParameterError, BotoCoreError) as error:  # the call failed, or no client could be made for it
            logger.error("could not read secret", arn=arn, reason=str(error))
            raise RetryableError("temporarily unavailable, send the same request again") from error
        if not isinstance(value, str):
            raise ConfigError([f"the secret {arn} has no text"])
        self._last_known[arn] = value
        return value


cached = SecretCache()


def database_url(secret: str) -> str:
    """A PostgreSQL URL from a secret's text: a URL as it stands, or the JSON that RDS keeps."""
    if secret.startswith(("postgres://", "postgresql://")):
        return secret
    try:
        parts = json.loads(secret)
        user, password, host = (quote(str(parts[name]), safe="") for name in ("username", "password", "host"))
        port, name = int(parts.get("port", 5432)), quote(str(parts.get("dbname", "postgres")), safe="")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ConfigError(
            ["the database secret must be a postgresql:// URL or JSON with username, password and host"]
        ) from None
    return f"postgresql://{user}:{password}@{host}:{port}/{name}"
