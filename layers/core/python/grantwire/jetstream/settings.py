"""Settings of the NATS connection: servers and credentials, from URLs or from a secret; TLS and timeouts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from grantwire.errors import ConfigError
from grantwire.settings import duration, flag, one_of, setting, text
from grantwire.tls import Certificates, certificates

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

_DEFAULT_PORT = 4222
_INBOX_PREFIX = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_URLS_ERROR = "must be nats:// or tls:// URLs, separated by commas, with the same percent-encoded credentials"
_FORMATS_ERROR = (
    "the NATS secret must be nats:// or tls:// URLs, or JSON with url and user and password, or url and credentials"
)


@dataclass(frozen=True, slots=True)
class NatsEndpoint:
    """NATS servers, as URLs without credentials, and the credentials to log in with.

    `credentials` is the content of a NATS credentials file (JWT and NKEY seed).
    """

    servers: tuple[str, ...]
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: str | None = field(default=None, repr=False)


def parse_urls(value: str) -> NatsEndpoint:
    """Parse URLs that are separated by commas; raise ValueError if one is not valid.

    Credentials are percent-decoded, which nats-py does not do. They are removed from the URLs, because nats-py may log
    these. A user without a password is a token.
    """
    try:
        servers, logins = zip(*(_parse_url(url.strip()) for url in value.split(",")), strict=True)
        distinct_logins = {login for login in logins if login != (None, None)}
        ((user, password),) = distinct_logins or {(None, None)}
    except ValueError:  # its text could contain a part of the password
        raise ValueError(_URLS_ERROR) from None
    if password is None:
        return NatsEndpoint(servers, token=user)
    return NatsEndpoint(servers, user=user, password=password)


def _parse_url(url: str) -> tuple[str, tuple[str | None, str | None]]:
    parts = urlsplit(url)
    if parts.scheme not in {"nats", "tls"} or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(_URLS_ERROR)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    user, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
    return f"{parts.scheme}://{host}:{parts.port or _DEFAULT_PORT}", (user, password)


def parse_secret(secret: str) -> NatsEndpoint:
    """Parse the text of a secret, which is URLs or JSON; raise ConfigError if it is not valid."""
    try:
        if not secret.lstrip().startswith("{"):
            return parse_urls(secret)
        fields = json.loads(secret)
        endpoint = parse_urls(fields["url"])
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ConfigError([_FORMATS_ERROR]) from None
    login = {name: fields[name] for name in ("user", "password", "credentials") if name in fields}
    is_complete = login.keys() in ({"user", "password"}, {"credentials"}) and all(map(_is_text, login.values()))
    if login and not is_complete:
        raise ConfigError([_FORMATS_ERROR])
    return NatsEndpoint(endpoint.servers, **login) if login else endpoint


def _parse_inbox_prefix(value: str) -> str:
    if not _INBOX_PREFIX.fullmatch(value):
        raise ValueError(f"must be letters, digits, _ and -, in parts that are separated by dots, not {value!r}")
    return value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


@dataclass(frozen=True, slots=True)
class NatsSettings:
    """Servers, credentials, TLS and timeouts of NATS."""

    endpoint: NatsEndpoint | None = setting("NATS_URL", parse_urls, optional=True, secret=True)
    secret_arn: str | None = setting("NATS_SECRET_ARN", text, optional=True)
    tls: str = setting("NATS_TLS", one_of("verify", "off"), default="verify")
    tls_ca: Certificates = setting("NATS_TLS_CA", certificates, default="system")
    plaintext_allowed: bool = setting("PLAINTEXT_ALLOWED", flag, default="false")
    # Subjects of responses begin with it. Each NATS user may subscribe only to its own.
    inbox_prefix: str = setting("NATS_INBOX_PREFIX", _parse_inbox_prefix, default="_INBOX_WORKERS")
    connect_timeout: timedelta = setting("NATS_CONNECT_TIMEOUT", duration(low="100ms", high="30s"), default="2s")
    publish_timeout: timedelta = setting("NATS_PUBLISH_TIMEOUT", duration(low="10ms", high="1m"), default="5s")

    def problems(self) -> Iterator[str]:
        """Yield contradictions between the settings."""
        if (self.endpoint is None) == (self.secret_arn is None):
            yield "exactly one of NATS_URL and NATS_SECRET_ARN must be set"
        if self.tls == "off" and not self.plaintext_allowed:
            yield "NATS_TLS=off needs PLAINTEXT_ALLOWED=true; use it only for servers on the same machine"
        if self.tls != "off" and self.tls_ca.is_empty:
            yield "NATS_TLS_CA must name a PEM file: no system certificates were found"
