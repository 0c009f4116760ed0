"""Where PostgreSQL is, how it proves that it is the right one, and how long to wait for it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import conninfo_to_dict

from grantwire.settings import Certificates, certificates, duration, flag, one_of, setting, text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

HOST = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?")


def parse_url(value: str) -> str:
    """A PostgreSQL URL, or ValueError.

    What is wrong with it is not said: libpq would quote a part of it, and with that of the password. A password that is
    not encoded often makes a URL of another meaning, in which it is a port or the name of a database.
    """
    with suppress(psycopg.Error):
        parts = {name: str(part) for name, part in conninfo_to_dict(value).items()}
        ports_are_numbers = re.fullmatch(r"[\d,]*", parts.get("port", "")) is not None
        names_are_names = not any("@" in parts.get(name, "") for name in ("host", "dbname"))
        if value.startswith(("postgres://", "postgresql://")) and ports_are_numbers and names_are_names:
            return value
    raise ValueError("must be a postgresql:// URL; in a password, anything but letters and digits is percent-encoded")


def _host(value: str) -> str:
    if not HOST.fullmatch(value):
        raise ValueError("must be a host, or host:port")
    return value


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """Where PostgreSQL is and how long to wait for it."""

    url: str | None = setting("DATABASE_URL", parse_url, optional=True, secret=True)
    secret_arn: str | None = setting("DATABASE_SECRET_ARN", text, optional=True)
    # PostgreSQL itself where the above leads to RDS Proxy, through which LISTEN and locks of a session do not work.
    listen_host: str | None = setting("DATABASE_LISTEN_HOST", _host, optional=True)
    tls: str = setting("DATABASE_TLS", one_of("verify-full", "off"), default="verify-full")
    tls_ca: Certificates = setting("DATABASE_TLS_CA", certificates, default="system")
    plaintext_allowed: bool = setting("PLAINTEXT_ALLOWED", flag, default="false")
    connect_timeout: timedelta = setting("DATABASE_CONNECT_TIMEOUT", duration(low="2s", high="10s"), default="2s")
    statement_timeout: timedelta = setting(
        "DATABASE_STATEMENT_TIMEOUT", duration(low="100ms", high="15m"), default="5s"
    )
    # RDS Proxy refuses startup options; behind it, set the statement timeout on the role.
    startup_options: bool = setting("DATABASE_STARTUP_OPTIONS", flag, default="true")

    def problems(self) -> Iterator[str]:
        """Exactly one way to the database, and nothing in clear on it."""
        if (self.url is None) == (self.secret_arn is None):
            yield "exactly one of DATABASE_URL and DATABASE_SECRET_ARN must be set"
        if self.tls == "off" and not self.plaintext_allowed:
            yield "DATABASE_TLS=off needs PLAINTEXT_ALLOWED=true, which is meant for servers on the same machine"
        if self.tls != "off" and self.tls_ca.is_empty:
            yield "DATABASE_TLS_CA must name a PEM file: this system has none in a usual place"
