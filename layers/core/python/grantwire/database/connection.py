"""Opens connections: with timeouts, over TLS, and with credentials that may have been rotated."""

from __future__ import annotations

import atexit
import tempfile
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from grantwire.aws import current_identity, database_token
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
        return _open(settings, _parse_secret(settings, secret), name, listening=listening)
    except psycopg.OperationalError as error:
        renewed = secret_cache.refresh(arn, rejected=secret) if is_authentication_error(error) else None
        if renewed is None:
            raise
        logger.info("database credentials refreshed", arn=arn)
    return _open(settings, _parse_secret(settings, renewed), name, listening=listening)


def _parse_secret(settings: DatabaseSettings, secret: str) -> str:
    return parse_database_secret(secret, needs_password=settings.login == "password")


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
    # Some functions disable kinds of scans, which raises the estimated cost of their plans. PostgreSQL 15 would compile
    # these plans (JIT), which takes longer than any of our statements.
    startup = f"-c statement_timeout={statement_ms} -c jit=off"
    options = {"options": startup} if settings.startup_options else {}
    host = _parse_host(settings.listen_host) if listening else {}
    try:
        address = make_conninfo(parse_url(url), **timeouts, **options, **host, **_tls_parameters(settings))
    except ValueError as error:
        raise ConfigError([f"the database secret {error}"]) from None
    return address if settings.login == "password" else make_conninfo(address, password=_iam_token(address))


def _iam_token(address: str) -> str:
    """Return a token for the user and the host of a connection string. Signing needs no request, so none is cached."""
    parts = conninfo_to_dict(address)
    return database_token(
        current_identity(),
        host=str(parts.get("host", "")),
        port=int(parts.get("port") or 5432),
        user=str(parts.get("user", "")),
        now=datetime.now(UTC),
    )


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
