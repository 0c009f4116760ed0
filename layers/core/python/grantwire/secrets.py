"""Secrets by ARN: read once for each execution environment, and again when they may have been rotated.

A rotation needs neither a deployment nor a restart: a server that refuses what is kept makes it be read again, and
nothing is kept for longer than five minutes. boto3 costs half a second of a cold start, so it is imported only when
there is a secret to read.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from grantwire.errors import ConfigError, RetryableError
from grantwire.observability import log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# A changed host is noticed after this; a changed password at once.
_KEPT_SECONDS = 300.0

# A password that stays wrong must not become a request to Secrets Manager for each request of a caller.
_PAUSE_SECONDS = 5.0


def read_secret(arn: str) -> str:
    """The current text of a secret in AWS Secrets Manager; RetryableError if it cannot be had."""
    import boto3  # noqa: PLC0415 - see the module's docstring
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    # boto's own limits are longer than a function lives.
    limits = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 2})
    try:
        answer: Mapping[str, Any] = boto3.client("secretsmanager", config=limits).get_secret_value(SecretId=arn)
    except (BotoCoreError, ClientError) as error:
        log.error("a secret cannot be read", arn=arn, reason=str(error))
        raise RetryableError("temporarily unavailable, send the same request again") from error
    if "SecretString" not in answer:
        raise ConfigError([f"the secret {arn} has no text"])
    return str(answer["SecretString"])


@dataclass(frozen=True, slots=True)
class _Kept:
    text: str = field(repr=False)
    read_at: float
    renewed_at: float | None = None


class SecretCache:
    """The secrets of one execution environment; its threads may share it."""

    def __init__(
        self, read: Callable[[str], str] = read_secret, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()

    def text(self, arn: str) -> str:
        """A secret's text, at most five minutes old; an older one only while Secrets Manager does not answer."""
        with self._lock:
            kept, now = self._kept.get(arn), self._clock()
            if kept is not None and now < kept.read_at + _KEPT_SECONDS:
                return kept.text
            try:
                self._kept[arn] = _Kept(self._read(arn), now, None if kept is None else kept.renewed_at)
            except RetryableError:
                if kept is None:
                    raise
            return self._kept[arn].text

    def renewed(self, arn: str, *, refused: str) -> str | None:
        """The text that took the place of one that a server refused; None if there is none yet.

        Read again at most once in five seconds, however often it is refused.
        """
        with self._lock:
            kept, now = self._kept.get(arn), self._clock()
            if kept is not None and kept.text != refused:
                return kept.text
            if kept is not None and kept.renewed_at is not None and now < kept.renewed_at + _PAUSE_SECONDS:
                return None
            if kept is not None:
                self._kept[arn] = replace(kept, renewed_at=now)
            text = self._read(arn)
            self._kept[arn] = _Kept(text, now, now)
            return text if text != refused else None


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
