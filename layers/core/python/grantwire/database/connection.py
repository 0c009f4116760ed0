"""Making a connection: with its limits, over TLS, with credentials that may have been rotated."""

from __future__ import annotations

import tempfile
from functools import cache
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import tuple_row

from grantwire.database.errors import is_refusal
from grantwire.database.settings import HOST, parse_url
from grantwire.errors import ConfigError
from grantwire.observability import logger
from grantwire.secrets import parse_database_secret, secret_cache

if TYPE_CHECKING:
    from typing import TypeVar

    from psycopg.abc import PQGen

    from grantwire.database.settings import DatabaseSettings

    RV = TypeVar("RV")

# Past the server's own statement timeout by this much, the server is no longer answering.
_GRACE_SECONDS = 1.0


class BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that gives up on a server that has stopped answering, which no server-side timeout can."""

    longest_wait: float | None = None

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """As psycopg's, with `longest_wait` in place of waiting for ever."""
        return super().wait(gen, interval=interval, timeout=self.longest_wait if timeout is None else timeout)


Connection = psycopg.Connection[tuple[Any, ...]]


def connect(settings: DatabaseSettings, *, application_name: str, listening: bool = False) -> BoundedConnection:
    """A new connection in autocommit, with its limits set; raises psycopg's own errors.

    `listening` takes the way around a proxy. Credentials of a secret that the server refuses are looked up once more:
    if they have been rotated, the new ones are tried.
    """
    name, arn = application_name, settings.secret_arn
    if arn is None:
        return _open(settings, settings.url or "", name, listening=listening)
    secret = secret_cache.get(arn)
    try:
        return _open(settings, parse_database_secret(secret), name, listening=listening)
    except psycopg.OperationalError as error:
        renewed = secret_cache.refresh(arn, rejected=secret) if is_refusal(error) else None
        if renewed is None:
            raise
        logger.info("database credentials refreshed", arn=arn)
    return _open(settings, parse_database_secret(renewed), name, listening=listening)


def _open(settings: DatabaseSettings, url: str, application_name: str, *, listening: bool) -> BoundedConnection:
    connection = BoundedConnection.connect(
        _parameters(settings, url, listening=listening),
        autocommit=True,
        prepare_threshold=0,
        row_factory=tuple_row,
        application_name=application_name,
    )
    if settings.tls != "off" and not connection.pgconn.ssl_in_use:
        connection.close()
        raise ConfigError(["the database's address leads past TLS: it must name a host, not a socket"])
    connection.longest_wait = settings.statement_timeout.total_seconds() + _GRACE_SECONDS
    return connection


def _parameters(settings: DatabaseSettings, url: str, *, listening: bool) -> str:
    """An address with all that the settings insist on, which wins over what stands in it."""
    statement_ms = int(settings.statement_timeout.total_seconds() * 1000)
    connect_seconds = int(settings.connect_timeout.total_seconds())
    limits = {"connect_timeout": connect_seconds, "tcp_user_timeout": connect_seconds * 1000}
    options = {"options": f"-c statement_timeout={statement_ms}"} if settings.startup_options else {}
    place = _place(settings.listen_host) if listening else {}
    try:
        return make_conninfo(parse_url(url), **limits, **options, **place, **_security(settings))
    except ValueError as error:
        raise ConfigError([f"the database's secret {error}"]) from None


def _security(settings: DatabaseSettings) -> dict[str, str]:
    if settings.tls == "off":
        return {}
    return {
        "sslmode": "verify-full",
        "sslrootcert": settings.tls_ca.file or _file_of(settings.tls_ca.text or "").name,
        "ssl_min_protocol_version": "TLSv1.2",
        "gssencmode": "disable",  # it would take the place of TLS
    }


def _place(host: str | None) -> dict[str, str]:
    """The part of an address that `host` or `host:port` replaces."""
    match = HOST.fullmatch(host or "")
    if match is None:
        return {}
    return {"host": match["host"].strip("[]"), **({"port": match["port"]} if match["port"] else {})}


@cache
def _file_of(certificate: str) -> tempfile._TemporaryFileWrapper[str]:
    """A file with a certificate, because libpq takes no text; it goes with the process."""
    file = tempfile.NamedTemporaryFile("w", prefix="grantwire-", suffix=".pem")  # noqa: SIM115
    file.write(certificate)
    file.flush()
    return file
