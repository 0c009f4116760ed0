"""Settings of the database connection: address, TLS and timeouts."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import conninfo_to_dict

from grantwire.settings import duration, flag, one_of, setting, text
from grantwire.tls import Certificates, certificates

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

HOST_PATTERN = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?")


def parse_url(value: str) -> str:
    """Return a PostgreSQL URL unchanged; raise ValueError if it is not valid.

    The error does not name the invalid part, because that could reveal a part of the password. A password that is not
    percent-encoded often produces a valid URL with a different meaning: a part of it becomes the port or the database
    name. So these parts are checked, too.
    """
    with suppress(psycopg.Error):
        parts = {name: str(part) for name, part in conninfo_to_dict(value).items()}
        has_valid_port = re.fullmatch(r"[\d,]*", parts.get("port", "")) is not None
        has_valid_names = not any("@" in parts.get(name, "") for name in ("host", "dbname"))
        if value.startswith(("postgres://", "postgresql://")) and has_valid_port and has_valid_names:
            return value
    raise ValueError("must be a postgresql:// URL with a percent-encoded password")


def _host(value: str) -> str:
    if not HOST_PATTERN.fullmatch(value):
        raise ValueError("must be a host or host:port")
    return value


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """Address, TLS and timeouts of PostgreSQL."""

    url: str | None = setting("DATABASE_URL", parse_url, optional=True, secret=True)
    secret_arn: str | None = setting("DATABASE_SECRET_ARN", text, optional=True)
    # iam: a token that is signed for each connection, instead of a password.
    login: str = setting("DATABASE_LOGIN", one_of("password", "iam"), default="password")
    # The address of PostgreSQL itself if the URL leads to RDS Proxy, which does not support LISTEN and session locks.
    listen_host: str | None = setting("DATABASE_LISTEN_HOST", _host, optional=True)
    tls: str = setting("DATABASE_TLS", one_of("verify-full", "off"), default="verify-full")
    tls_ca: Certificates = setting("DATABASE_TLS_CA", certificates, default="system")
    plaintext_allowed: bool = setting("PLAINTEXT_ALLOWED", flag, default="false")
    connect_timeout: timedelta = setting("DATABASE_CONNECT_TIMEOUT", duration(low="2s", high="10s"), default="2s")
    statement_timeout: timedelta = setting(
        "DATABASE_STATEMENT_TIMEOUT", duration(low="100ms", high="15m"), default="5s"
    )
    # RDS Proxy refuses startup options; behind it, set the statement timeout and jit on the role.
    startup_options: bool = setting("DATABASE_STARTUP_OPTIONS", flag, default="true")

    def problems(self) -> Iterator[str]:
        """Yield contradictions between the settings."""
        if (self.url is None) == (self.secret_arn is None):
            yield "exactly one of DATABASE_URL and DATABASE_SECRET_ARN must be set"
        if self.login == "iam" and self.tls == "off":
            yield "DATABASE_LOGIN=iam needs TLS, because the token would be readable"
        if self.tls == "off" and not self.plaintext_allowed:
            yield "DATABASE_TLS=off needs PLAINTEXT_ALLOWED=true; use it only for servers on the same machine"
        if self.tls != "off" and self.tls_ca.is_empty:
            yield "DATABASE_TLS_CA must name a PEM file: no system certificates were found"
