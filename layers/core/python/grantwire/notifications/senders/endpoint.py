"""The endpoint of a webhook: its URL and the keys that sign each request, from a secret or from settings (G5)."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from grantwire.errors import ConfigError
from grantwire.observability import logger
from grantwire.secrets import secret_cache

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grantwire.secrets import SecretCache

_KEY_PREFIX = "whsec_"
# The limits of the Standard Webhooks specification.
_MIN_KEY_BYTES = 24
_MAX_KEY_BYTES = 64
_MAX_KEYS = 2  # the old and the new one during a rotation
_KEYS_ERROR = "must be one key or two keys of the form whsec_… (base64 of 24 to 64 bytes), separated by a comma"
_FORMAT_ERROR = (
    "the webhook secret must be JSON with url, an https:// URL without credentials or fragment, and keys, a list of "
    "one key or two keys of the form whsec_… (base64 of 24 to 64 bytes)"
)


@dataclass(frozen=True, slots=True)
class WebhookEndpoint:
    """Where a webhook is sent, and one or two keys; `secret` is the text that both come from, if there is one.

    All are secret, because the URL may contain a token.
    """

    url: str = field(repr=False)
    keys: tuple[str, ...] = field(repr=False)
    secret: str = field(repr=False, default="")


def parse_webhook_url(value: str) -> str:
    """Return the URL unchanged; raise ValueError, without the URL in its text, if it is not valid."""
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise ValueError("must be an http:// or https:// URL") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.fragment:
        raise ValueError("must be an http:// or https:// URL without credentials or fragment")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("must be percent-encoded")
    return value


def parse_keys(value: str) -> tuple[str, ...]:
    """Parse keys that are separated by commas; raise ValueError, without a key in its text, if one is not valid."""
    return _check_keys(key.strip() for key in value.split(","))


def _check_keys(values: Iterable[Any]) -> tuple[str, ...]:
    keys = tuple(values)
    if not 1 <= len(keys) <= _MAX_KEYS or not all(map(_is_key, keys)):
        raise ValueError(_KEYS_ERROR)
    return keys


def _is_key(value: Any) -> bool:
    if not isinstance(value, str) or not value.startswith(_KEY_PREFIX):
        return False
    try:
        encoded = value.removeprefix(_KEY_PREFIX).encode("ascii")
        key = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        return False
    return _MIN_KEY_BYTES <= len(key) <= _MAX_KEY_BYTES


def parse_webhook_secret(secret: str, *, plaintext_allowed: bool) -> WebhookEndpoint:
    """Parse the JSON of a secret; raise ConfigError, without the secret in its text, if it is not valid."""
    try:
        fields = json.loads(secret)
        url, keys = fields["url"], fields["keys"]
        if not isinstance(url, str) or not isinstance(keys, list):
            raise ConfigError([_FORMAT_ERROR])
        endpoint = WebhookEndpoint(parse_webhook_url(url), _check_keys(keys), secret)
    except (ValueError, KeyError, TypeError):
        raise ConfigError([_FORMAT_ERROR]) from None
    if not (plaintext_allowed or endpoint.url.startswith("https:")):
        raise ConfigError([_FORMAT_ERROR])
    return endpoint


class FixedEndpoint:
    """An endpoint from the settings of a local stack."""

    def __init__(self, endpoint: WebhookEndpoint) -> None:
        self._endpoint = endpoint

    def read(self) -> WebhookEndpoint:
        """Return the endpoint."""
        return self._endpoint

    def refresh(self, _rejected: WebhookEndpoint) -> WebhookEndpoint | None:
        """Return None: settings do not change."""
        return None


class SecretEndpoint:
    """An endpoint from Secrets Manager, with the guarantees of `SecretCache`. Safe to share between threads."""

    def __init__(self, arn: str, *, plaintext_allowed: bool, cache: SecretCache = secret_cache) -> None:
        self._arn = arn
        self._plaintext_allowed = plaintext_allowed
        self._cache = cache

    def read(self) -> WebhookEndpoint:
        """Return the endpoint, at most five minutes old unless Secrets Manager is unavailable.

        Raises RetryableError if the secret cannot be read, ConfigError if it is not valid.
        """
        return parse_webhook_secret(self._cache.get(self._arn), plaintext_allowed=self._plaintext_allowed)

    def refresh(self, rejected: WebhookEndpoint) -> WebhookEndpoint | None:
        """Return the endpoint that replaced `rejected`; None if the secret has not changed.

        Raises as `read` does.
        """
        renewed = self._cache.refresh(self._arn, rejected=rejected.secret)
        if renewed is None:
            return None
        logger.info("webhook secret refreshed", arn=self._arn)
        return parse_webhook_secret(renewed, plaintext_allowed=self._plaintext_allowed)
