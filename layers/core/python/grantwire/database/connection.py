"""Opens connections: with timeouts, over TLS, and with credentials that may have been rotated."""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import tuple_row

from grantwire.database.settings import HOST_PATTERN, parse_url
from grantwire.errors import ConfigError
from grantwire.observability import logger
from grantwire.secrets import parse_database_secret, secret_cache
from grantwire_idempotency.databases import is_authentication_error, set_limit

if TYPE_CHECKING:
    from grantwire.database.settings import DatabaseSettings

Connection = psycopg.Connection[tuple[Any, ...]]


def connect(settings: DatabaseSettings, *, application_name: str, listening: bool = False) -> Connection:
    """Open a connection in autocommit mode, with its timeouts set; raise psycopg's own errors.

    With `listening` it goes to `DATABASE_LISTEN_HOST`, if that is set. If the server rejects the credentials of a
    secret, the secret is read again, and rotated credentials are tried once.
    """
    name, arn = application_name, settings.secret_arn
    if arn is None:
        return _open(settings, settings.url or "", name, listening=listening)
    secret = secret_cache.get(arn)
    try:
        return _open(settings, parse_database_secret(secret), name, listening=listening)
    except psycopg.OperationalError as error:
        renewed = secret_cache.refresh(arn, rejected=secret) if is_authentication_error(error) else None
        if renewed is None:
            raise
        logger.info("database credentials refreshed", arn=arn)
    return _open(settings, parse_database_secret(renewed), name, listening=listening)


def _open(settings: DatabaseSettings, url: str, application_name: str, *, listening: bool) -> Connection:
    connection = psycopg.Connection.connect(
        _connection_string(settings, url, listening=listening),
        autocommit=True,
        prepare_threshold=0,
        row_factory=tuple_row,
        application_name=application_name,
    )
    if settings.tls != "off" and not connection.pgconn.ssl_in_use:
        connection.close()
        raise ConfigError(["the database URL must name a host, not a Unix socket, which cannot use TLS"])
    # Ends the waits for a server that cannot enforce its own timeout.
    set_limit(connection, settings.statement_timeout.total_seconds())
    return connection


def _connection_string(settings: DatabaseSettings, url: str, *, listening: bool) -> str:
    """Combine a database URL with the settings; the settings override the URL."""
    statement_ms = int(settings.statement_timeout.total_seconds() * 1000)
    connect_seconds = int(settings.connect_timeout.total_seconds())
    timeouts = {"connect_timeout": connect_seconds, "tcp_user_timeout": connect_seconds * 1000}
    options = {"options": f"-c statement_timeout={statement_ms}"} if settings.startup_options else {}
    host = _parse_host(settings.listen_host) if listening else {}
    try:
        return make_conninfo(parse_url(url), **timeouts, **options, **host, **_tls_parameters(settings))
    except ValueError as error:
        raise ConfigError([f"the database secret {error}"]) from None


def _tls_parameters(settings: DatabaseSettings) -> dict[str, str]:
    if settings.tls == "off":
        return {}
    return {
        "sslmode": "verify-full",
        "sslrootcert": settings.tls_ca.file or _write_certificate(settings.tls_ca.text or ""),
        "ssl_min_protocol_version": "TLSv1.2",
        "gssencmode": "disable",  # libpq would use GSSAPI encryption instead of TLS
    }


def _parse_host(host: str | None) -> dict[str, str]:
    """Return the connection parameters for `host` or `host:port`."""
    match = HOST_PATTERN.fullmatch(host or "")
    if match is None:
        return {}
    return {"host": match["host"].strip("[]"), **({"port": match["port"]} if match["port"] else {})}


@cache
def _write_certificate(certificate: str) -> str:
    """Write a certificate to a file, because libpq accepts no text; the file is deleted when the process exits."""
    with tempfile.NamedTemporaryFile("w", prefix="grantwire-", suffix=".pem", delete=False) as file:
        file.write(certificate)
    atexit.register(Path(file.name).unlink, missing_ok=True)  # its directory may be deleted first
    return file.name
