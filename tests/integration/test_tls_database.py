"""PostgreSQL over TLS: the server proves its name, or there is no connection; nothing falls back."""

from __future__ import annotations

import json
import os
import shutil
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
from tests.support.certificates import Authority
from tests.support.client import Client
from tests.support.servers import STATE
from tests.support.tls_front import HOST, TlsFront

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.certificates import Certificate

SECURED = {"DATABASE_TLS": "verify-full", "PLAINTEXT_ALLOWED": "false"}


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whom the tests believe."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def certificate(authority: Authority) -> Certificate:
    """The right one for this machine."""
    return authority.issue(HOST, "localhost")


@pytest.fixture
def front(server: PostgresServer, certificate: Certificate) -> Iterator[TlsFront]:
    """PostgreSQL behind TLS with the right certificate."""
    with TlsFront(server.url(), certificate) as front:
        yield front


def _settings(url: str, authority: str | Path, **more: str) -> DatabaseSettings:
    return load(DatabaseSettings, {**SECURED, "DATABASE_URL": url, "DATABASE_TLS_CA": str(authority), **more})


def _refused(settings: DatabaseSettings, capsys: pytest.CaptureFixture[str]) -> str:
    """What the log says of a connection that must not come about; the caller is only told to come back."""
    with (
        closing(Database(settings)) as database,
        pytest.raises(RetryableError, match=r"^temporarily unavailable, send the same request again$"),
    ):
        database.fetch_row("SELECT 1", {})
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert line["level"] == "ERROR"
    return str(line["reason"])


def test_a_function_works_over_tls(front: TlsFront, authority: Authority) -> None:
    """A grant, as anywhere; its connection is the secured one."""
    secured = {**SECURED, "DATABASE_TLS_CA": str(authority.file)}
    with Client(front.url, **secured) as client:
        assert client.grant("tls-1", user_id="tls").status == 200
    assert (front.secured, front.in_clear) == (1, 0)


def test_certificates_may_be_given_as_text(front: TlsFront, authority: Authority) -> None:
    """As it stands in a file, or on one line as a template's parameter has to be."""
    pem = authority.file.read_text()
    for text in (pem, pem.strip().replace("\n", "\\n")):
        with connect(_settings(front.url, text), application_name="tls") as connection:
            assert connection.pgconn.ssl_in_use


def test_another_authority_is_not_believed(front: TlsFront, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Anybody can make a certificate; the log says what is missing."""
    reason = _refused(_settings(front.url, Authority(tmp_path, "another").file), capsys)
    assert "certificate verify failed" in reason
    assert "DATABASE_TLS_CA must hold the authority" in reason
    assert front.secured == 0


def test_the_system_s_authorities_are_believed_by_default(front: TlsFront, capsys: pytest.CaptureFixture[str]) -> None:
    """And ours is none of them."""
    settings = load(DatabaseSettings, {**SECURED, "DATABASE_URL": front.url})
    assert settings.tls_ca.file is not None
    assert "certificate verify failed" in _refused(settings, capsys)


def test_another_host_s_certificate_is_not_believed(
    server: PostgresServer, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the right authority, but for a server elsewhere: who has stolen it cannot be our database."""
    with TlsFront(server.url(), authority.issue("elsewhere.example")) as front:
        reason = _refused(_settings(front.url, authority.file), capsys)
    assert "does not match host name" in reason
    assert "a name that the server's certificate holds" in reason


def test_an_expired_certificate_is_not_believed(
    server: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Since a second."""
    authority = Authority(tmp_path)
    with TlsFront(server.url(), authority.issue(HOST, expires=datetime.now(UTC))) as front:
        assert "certificate verify failed" in _refused(_settings(front.url, authority.file), capsys)


@pytest.mark.parametrize("weaker", ["", "?sslmode=disable", "?sslmode=prefer", "?sslmode=allow&gssencmode=prefer"])
def test_a_server_without_tls_is_refused_whatever_the_address_says(
    server: PostgresServer, authority: Authority, weaker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It never falls back: the server is asked for TLS and told nothing more."""
    reason = _refused(_settings(server.url() + weaker, authority.file), capsys)
    assert "does not support SSL" in reason
    assert "switch TLS on" in reason


@pytest.mark.parametrize("weaker", ["sslmode=disable", "sslmode=require", "sslmode=verify-ca", "sslrootcert={trusted}"])
def test_an_address_cannot_choose_whom_to_believe(
    front: TlsFront, authority: Authority, tmp_path: Path, weaker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands in an address comes from a secret that another team keeps; the settings decide."""
    url = f"{front.url}?{weaker.format(trusted=authority.file)}"
    assert "certificate verify failed" in _refused(_settings(url, Authority(tmp_path, "another").file), capsys)
    assert front.in_clear == 0


def test_a_socket_is_no_way_around_tls(authority: Authority, tmp_path: Path) -> None:
    """Over a socket of the machine libpq forgets about TLS; so an address that names one is a mistake."""
    server = PostgresServer(tmp_path / "socket", settings={**UNSAFE, "unix_socket_directories": "/tmp"})  # noqa: S108
    server.start()
    try:
        url = f"postgresql://postgres:{server.password}@/postgres?host=/tmp&port={server.port}"
        psycopg.connect(url).close()
        with pytest.raises(ConfigError, match="leads past TLS"):
            connect(_settings(url, authority.file), application_name="tls")
    finally:
        server.destroy()


def test_listening_takes_a_way_of_its_own(
    server: PostgresServer, front: TlsFront, certificate: Certificate, authority: Authority
) -> None:
    """Past a proxy, with the same credentials, and as well secured."""
    with TlsFront(server.url(), certificate) as direct:
        settings = _settings(front.url, authority.file, DATABASE_LISTEN_HOST=direct.address)
        connect(settings, application_name="tls", listening=True).close()
        assert (front.secured, direct.secured) == (0, 1)
        connect(settings, application_name="tls").close()
        assert (front.secured, direct.secured) == (1, 1)


def test_a_postgresql_with_tls_of_its_own(authority: Authority, certificate: Certificate) -> None:
    """No front: the server itself, which tells that the session is secured, and scram bound to the channel."""
    able = [one for one in list_installations() if b"libssl" in (one.binaries / "postgres").read_bytes()]
    if not able:
        pytest.skip("no PostgreSQL of this machine is built with TLS")
    server = PostgresServer(STATE / "tls", binaries=able[0].binaries, settings=UNSAFE)
    server.start()
    try:
        _switch_tls_on(server, certificate)
        url = server.url() + "?channel_binding=require"
        with connect(_settings(url, authority.file), application_name="tls") as connection:
            assert connection.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone() == (True,)
    finally:
        server.destroy()


def _switch_tls_on(server: PostgresServer, certificate: Certificate) -> None:
    """The key must belong to the server's account."""
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
