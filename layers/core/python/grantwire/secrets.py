"""Secrets from AWS Secrets Manager, cached for each execution environment.

A rotated secret needs neither a deployment nor a restart: the cache is refreshed when a server rejects the cached
credentials, and an entry expires after five minutes. If Secrets Manager is unavailable, the last known value is used.
"""

from __future__ import annotations

import json
import threading
import time
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from grantwire.aws import read_secret
from grantwire.errors import ConfigError, RetryableError
from grantwire.observability import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# A changed password is detected immediately, because the server rejects the old one. A changed host is not, so entries
# expire.
_MAX_AGE_SECONDS = 300

# If the password stays wrong, requests of callers must not each cause a request to Secrets Manager.
_MIN_REFRESH_INTERVAL_SECONDS = 5.0


# While Secrets Manager is unavailable, each attempt to read can take several seconds.
_RETRY_INTERVAL_SECONDS = 30.0


class SecretCache:
    """The secrets of one execution environment. Safe to share between threads.

    `read` returns what Secrets Manager has for an ARN, or raises RetryableError.
    """

    def __init__(
        self,
        read: Callable[[str], Mapping[str, Any]] = read_secret,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_secret = read
        self._clock = clock
        self._last_known: dict[str, str] = {}
        self._read_at: dict[str, float] = {}
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
            if known is not None and self._clock() <= self._read_at[arn] + _MAX_AGE_SECONDS:
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
            secret = self._read(arn)
            return secret if secret != rejected else None

    def _read(self, arn: str) -> str:
        """Read the secret and remember it as the last known value."""
        try:
            value = self._read_secret(arn).get("SecretString")
        except RetryableError as error:
            logger.error("could not read secret", arn=arn, reason=str(error))
            raise RetryableError("temporarily unavailable, send the same request again") from error
        if not isinstance(value, str):
            raise ConfigError([f"secret {arn} must be text, not binary"])
        self._last_known[arn] = value
        self._read_at[arn] = self._clock()
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
