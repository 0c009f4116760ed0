"""PostgreSQL over TLS: the server must present a valid certificate; there is no fallback to plaintext."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.database import Database, DatabaseSettings, connect
from grantwire.errors import ConfigError, RetryableError
from grantwire.settings import load
from infra.local.servers.postgres import UNSAFE, PostgresServer, list_installations
from infra.local.system import unprivileged
from infra.local.system.memory import in_memory
from tests.support.certificates import Authority
from tests.support.client import Client
from tests.support.paths import PYTHONPATH
from tests.support.servers import STATE
from tests.support.tls_proxy import HOST, TlsProxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.certificates import Certificate

TLS_REQUIRED = {"DATABASE_TLS": "verify-full", "PLAINTEXT_ALLOWED": "false"}


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The certificate authority that the tests trust."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def certificate(authority: Authority) -> Certificate:
    """A valid certificate for this machine."""
    return authority.issue(HOST, "localhost")


@pytest.fixture
def front(server: PostgresServer, certificate: Certificate) -> Iterator[TlsProxy]:
    """A TLS proxy in front of PostgreSQL, with a valid certificate."""
    with TlsProxy(server.url(), certificate) as front:
        yield front


def _settings(url: str, authority: str | Path, **more: str) -> DatabaseSettings:
    return load(DatabaseSettings, {**TLS_REQUIRED, "DATABASE_URL": url, "DATABASE_TLS_CA": str(authority), **more})


def _connect_refused(settings: DatabaseSettings, capsys: pytest.CaptureFixture[str]) -> str:
    """Check that connecting fails, and return the logged reason; the caller's error does not contain it."""
    with (
        closing(Database(settings)) as database,
        pytest.raises(RetryableError, match=r"^temporarily unavailable, send the same request again$"),
    ):
        database.fetch_row("SELECT 1", {})
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert line["level"] == "ERROR"
    return str(line["reason"])


def test_grant_works_over_tls(front: TlsProxy, authority: Authority) -> None:
    """Its only connection uses TLS."""
    settings = {**TLS_REQUIRED, "DATABASE_TLS_CA": str(authority.file)}
    with Client(front.url, **settings) as client:
        assert client.grant("tls-1", user_id="tls").status == 200
    assert (front.secured, front.in_clear) == (1, 0)


def test_certificates_can_be_set_as_text(front: TlsProxy, authority: Authority) -> None:
    """As in a PEM file, or on one line, as a CloudFormation parameter requires."""
    pem = authority.file.read_text()
    for text in (pem, pem.strip().replace("\n", "\\n")):
        with connect(_settings(front.url, text), application_name="tls") as connection:
            assert connection.pgconn.ssl_in_use


@pytest.mark.parametrize("end", ["", "shutil.rmtree(tempfile.gettempdir())"])
def test_file_of_the_certificates_is_deleted_at_exit(
    front: TlsProxy, authority: Authority, tmp_path: Path, end: str
) -> None:
    """The process ends without a message, also if its temporary directory is deleted first."""
    program = (
        "import os, shutil, tempfile\n"
        "from grantwire.database import DatabaseSettings, connect; from grantwire.settings import load\n"
        "connect(load(DatabaseSettings, os.environ), application_name='tls').close()\n"
        f"print(os.listdir(tempfile.gettempdir())); {end}"
    )
    variables = {**TLS_REQUIRED, "DATABASE_URL": front.url, "DATABASE_TLS_CA": authority.file.read_text()}
    folder = tmp_path / "tmp"
    folder.mkdir()
    process = subprocess.run(
        [sys.executable, "-c", program],
        env={**variables, "PYTHONPATH": PYTHONPATH, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"\['grantwire-\w+\.pem'\]\n", process.stdout)
    assert process.stderr == ""
    assert not folder.exists() or list(folder.iterdir()) == []


def test_certificate_of_unknown_authority_is_refused(
    front: TlsProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log says which setting to change."""
    reason = _connect_refused(_settings(front.url, Authority(tmp_path, "another").file), capsys)
    assert "certificate verify failed" in reason
    assert "DATABASE_TLS_CA must contain the authority" in reason
    assert front.secured == 0


def test_system_authorities_are_trusted_by_default(front: TlsProxy, capsys: pytest.CaptureFixture[str]) -> None:
    """The test's own authority is not one of them, so it is refused."""
    settings = load(DatabaseSettings, {**TLS_REQUIRED, "DATABASE_URL": front.url})
    assert settings.tls_ca.file is not None
    assert "certificate verify failed" in _connect_refused(settings, capsys)


def test_certificate_for_another_host_is_refused(
    server: PostgresServer, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is signed by a trusted authority; a stolen certificate must not work for another host."""
    with TlsProxy(server.url(), authority.issue("elsewhere.example")) as front:
        reason = _connect_refused(_settings(front.url, authority.file), capsys)
    assert "does not match host name" in reason
    assert "a host name that the server's certificate contains" in reason


def test_expired_certificate_is_refused(
    server: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The certificate expired just before the connection."""
    authority = Authority(tmp_path)
    with TlsProxy(server.url(), authority.issue(HOST, expires=datetime.now(UTC))) as front:
        assert "certificate verify failed" in _connect_refused(_settings(front.url, authority.file), capsys)


@pytest.mark.parametrize("weaker", ["", "?sslmode=disable", "?sslmode=prefer", "?sslmode=allow&gssencmode=prefer"])
def test_server_without_tls_is_refused_for_any_url(
    server: PostgresServer, authority: Authority, weaker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no fallback: sslmode and gssencmode in the URL are ignored."""
    reason = _connect_refused(_settings(server.url() + weaker, authority.file), capsys)
    assert "does not support SSL" in reason
    assert "enable TLS in PostgreSQL" in reason


@pytest.mark.parametrize("weaker", ["sslmode=disable", "sslmode=require", "sslmode=verify-ca", "sslrootcert={trusted}"])
def test_url_cannot_weaken_certificate_checks(
    front: TlsProxy, authority: Authority, tmp_path: Path, weaker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The URL may come from a secret of another team; the settings override it."""
    url = f"{front.url}?{weaker.format(trusted=authority.file)}"
    assert "certificate verify failed" in _connect_refused(_settings(url, Authority(tmp_path, "another").file), capsys)
    assert front.in_clear == 0


def test_unix_socket_is_a_config_error_with_tls(authority: Authority, tmp_path: Path) -> None:
    """Libpq ignores TLS settings on a Unix socket, so such a URL is refused."""
    server = PostgresServer(tmp_path / "socket", settings={**UNSAFE, "unix_socket_directories": "/tmp"})  # noqa: S108
    server.start()
    try:
        url = f"postgresql://postgres:{server.password}@/postgres?host=/tmp&port={server.port}"
        psycopg.connect(url).close()
        with pytest.raises(ConfigError, match="not a Unix socket"):
            connect(_settings(url, authority.file), application_name="tls")
    finally:
        server.destroy()


def test_listen_connection_uses_the_listen_host(
    server: PostgresServer, front: TlsProxy, certificate: Certificate, authority: Authority
) -> None:
    """It bypasses a proxy, with the same credentials and the same TLS checks."""
    with TlsProxy(server.url(), certificate) as direct:
        settings = _settings(front.url, authority.file, DATABASE_LISTEN_HOST=direct.address)
        connect(settings, application_name="tls", listening=True).close()
        assert (front.secured, direct.secured) == (0, 1)
        connect(settings, application_name="tls").close()
        assert (front.secured, direct.secured) == (1, 1)


def test_connects_to_a_postgresql_with_native_tls(authority: Authority, certificate: Certificate) -> None:
    """Without the TLS proxy: the server reports that the session uses TLS, and SCRAM uses channel binding."""
    with_tls = [each for each in list_installations() if b"libssl" in (each.binaries / "postgres").read_bytes()]
    if not with_tls:
        pytest.skip("no PostgreSQL on this machine is built with TLS")
    server = PostgresServer(in_memory(STATE) / "tls", binaries=with_tls[0].binaries, settings=UNSAFE)
    server.start()
    try:
        _enable_tls(server, certificate)
        url = server.url() + "?channel_binding=require"
        with connect(_settings(url, authority.file), application_name="tls") as connection:
            assert connection.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone() == (True,)
    finally:
        server.destroy()


def _enable_tls(server: PostgresServer, certificate: Certificate) -> None:
    """Install the certificate and restart; the key must be owned by the account of the server."""
    owner = unprivileged.account()
    for source, name in ((certificate.file, "server.crt"), (certificate.key, "server.key")):
        target = server.folder / "data" / name
        shutil.copyfile(source, target)
        target.chmod(0o600)
        if owner is not None:
            os.chown(target, owner.uid, owner.gid)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET ssl = on")
    server.restart()
