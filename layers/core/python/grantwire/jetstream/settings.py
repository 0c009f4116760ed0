"""Where NATS is and as whom to log in: from an address, or from a secret."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from grantwire.errors import ConfigError
from grantwire.settings import Certificates, certificates, duration, flag, one_of, setting, text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

_PORT = 4222
_ADDRESSES = "must be nats:// or tls:// URLs, separated by commas, with the same credentials; these are percent-encoded"
_WANTED = "the NATS secret must be nats:// or tls:// URLs, or JSON with url and either user and password or credentials"


@dataclass(frozen=True, slots=True)
class Access:
    """Where NATS is, without credentials, and these."""

    servers: tuple[str, ...]
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: str | None = field(default=None, repr=False)


def parse_addresses(value: str) -> Access:
    """One address or several, separated by commas; a wrong one must not look like a server that is down.

    Credentials are decoded here, which the client does not do, and do not stay in the addresses, which may be logged.
    """
    try:
        servers, names = zip(*(_parse_address(address.strip()) for address in value.split(",")), strict=True)
        known = {name for name in names if name != (None, None)}
        ((user, password),) = known or {(None, None)}
    except ValueError:  # it may quote a part of the address
        raise ValueError(_ADDRESSES) from None
    if password is None:
        return Access(servers, token=user)
    return Access(servers, user=user, password=password)


def _parse_address(address: str) -> tuple[str, tuple[str | None, str | None]]:
    parts = urlsplit(address)
    if parts.scheme not in {"nats", "tls"} or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(_ADDRESSES)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    user, password = (None if name is None else unquote(name) for name in (parts.username, parts.password))
    return f"{parts.scheme}://{host}:{parts.port or _PORT}", (user, password)


def access_of(secret: str) -> Access:
    """What a secret's text says: the addresses as they stand, or JSON."""
    try:
        if not secret.lstrip().startswith("{"):
            return parse_addresses(secret)
        parts = json.loads(secret)
        found = parse_addresses(parts["url"])
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ConfigError([_WANTED]) from None
    names = {name: parts[name] for name in ("user", "password", "credentials") if name in parts}
    complete = names.keys() in ({"user", "password"}, {"credentials"}) and all(map(_is_text, names.values()))
    if names and not complete:
        raise ConfigError([_WANTED])
    return Access(found.servers, **names) if names else found


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


@dataclass(frozen=True, slots=True)
class NatsSettings:
    """Where NATS is and how long to wait for it."""

    access: Access | None = setting("NATS_URL", parse_addresses, optional=True, secret=True)
    secret_arn: str | None = setting("NATS_SECRET_ARN", text, optional=True)
    tls: str = setting("NATS_TLS", one_of("verify", "off"), default="verify")
    tls_ca: Certificates = setting("NATS_TLS_CA", certificates, default="system")
    plaintext_allowed: bool = setting("PLAINTEXT_ALLOWED", flag, default="false")
    connect_timeout: timedelta = setting("NATS_CONNECT_TIMEOUT", duration(low="100ms", high="30s"), default="2s")
    publish_timeout: timedelta = setting("NATS_PUBLISH_TIMEOUT", duration(low="10ms", high="1m"), default="5s")

    def problems(self) -> Iterator[str]:
        """Exactly one way to NATS, and nothing in clear on it."""
        if (self.access is None) == (self.secret_arn is None):
            yield "exactly one of NATS_URL and NATS_SECRET_ARN must be set"
        if self.tls == "off" and not self.plaintext_allowed:
            yield "NATS_TLS=off needs PLAINTEXT_ALLOWED=true, which is meant for servers on the same machine"
        if self.tls != "off" and self.tls_ca.is_empty:
            yield "NATS_TLS_CA must name a PEM file: this system has none in a usual place"
