"""NATS over TLS and with credentials: the server must present a valid certificate before it receives credentials."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import uuid
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from grantwire.errors import ConfigError, RetryableError
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.settings import NatsSettings, parse_secret
from grantwire.settings import load
from infra.local.system.memory import in_memory
from infra.local.system.ports import HOST
from tests.support.certificates import Authority
from tests.support.nats_accounts import Operator
from tests.support.plaintext import PLAINTEXT
from tests.support.secured_nats import SecuredNats, tls, user
from tests.support.servers import STATE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infra.local.servers.nats import NatsServer

SPECIAL_PASSWORD = "p@ss:w/rd?#%41 ü"
TLS_REQUIRED = {"NATS_TLS": "verify", "PLAINTEXT_ALLOWED": "false"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The certificate authority that the tests trust."""
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def _running_nats(configuration: str) -> Iterator[SecuredNats]:
    server = SecuredNats(in_memory(STATE) / f"secured-nats-{uuid.uuid4().hex[:8]}", configuration)
    server.start()
    try:
        yield server
    finally:
        server.destroy()


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[SecuredNats]:
    """A server with TLS and a user whose password needs percent-encoding."""
    with _running_nats(tls(authority.issue(HOST, "localhost"), more=user("grantwire", SPECIAL_PASSWORD))) as server:
        yield server


def _connect(environ: dict[str, str]) -> None:
    """Connect and wait for a response of the server; raise the error if that fails."""

    async def scenario() -> None:
        connection = NatsConnection(load(NatsSettings, environ))
        await connection.connect()
        await connection.client.flush()
        await connection.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("scheme", ["nats", "tls"])
def test_user_logs_in_over_tls(scheme: str, secured: SecuredNats, authority: Authority) -> None:
    """With both schemes, and with a password that is percent-encoded in the URL."""
    url = f"{scheme}://grantwire:{quote(SPECIAL_PASSWORD, safe='')}@{secured.address}"
    for certificates in (str(authority.file), authority.file.read_text().strip()):
        _connect({**TLS_REQUIRED, "NATS_URL": url, "NATS_TLS_CA": certificates})


def test_tls_url_enables_tls_if_the_setting_is_off(secured: SecuredNats, authority: Authority) -> None:
    """The certificate is checked as with NATS_TLS=verify."""
    url = f"tls://grantwire:{quote(SPECIAL_PASSWORD, safe='')}@{secured.address}"
    _connect({**PLAINTEXT, "NATS_URL": url, "NATS_TLS_CA": str(authority.file)})
    with pytest.raises(RetryableError, match="certificate verify failed"):
        _connect({**PLAINTEXT, "NATS_URL": url})


def test_error_for_a_wrong_password_does_not_contain_it(secured: SecuredNats, authority: Authority) -> None:
    """Neither the error nor its cause contains the password."""
    url = f"nats://grantwire:hunter2@{secured.address}"
    environ = {**TLS_REQUIRED, "NATS_URL": url, "NATS_TLS_CA": str(authority.file)}
    with pytest.raises(RetryableError, match="Authorization Violation") as caught:
        _connect(environ)
    assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"


def test_certificate_of_unknown_authority_is_refused(secured: SecuredNats, tmp_path: Path) -> None:
    """The error says which setting to change."""
    with pytest.raises(RetryableError, match="NATS_TLS_CA must contain the authority"):
        _connect({**TLS_REQUIRED, "NATS_URL": secured.url, "NATS_TLS_CA": str(Authority(tmp_path, "another").file)})


def test_certificate_for_another_host_or_expired_is_refused(authority: Authority) -> None:
    """Both certificates are signed by a trusted authority."""
    environ = {**TLS_REQUIRED, "NATS_TLS_CA": str(authority.file)}
    with (
        _running_nats(tls(authority.issue("elsewhere.example"))) as server,
        pytest.raises(RetryableError, match="a host name that the server's certificate contains"),
    ):
        _connect(environ | {"NATS_URL": server.url})
    with (
        _running_nats(tls(authority.issue(HOST, expires=datetime.now(UTC)))) as server,
        pytest.raises(RetryableError, match="certificate has expired"),
    ):
        _connect(environ | {"NATS_URL": server.url})


def test_server_without_tls_is_refused(nats_server: NatsServer, authority: Authority) -> None:
    """There is no fallback to plaintext."""
    with pytest.raises(RetryableError, match="does the server support TLS"):
        _connect({**TLS_REQUIRED, "NATS_URL": nats_server.url, "NATS_TLS_CA": str(authority.file)})


def test_tls_is_used_if_the_server_does_not_require_it(authority: Authority, tmp_path: Path) -> None:
    """Its INFO message does not require TLS; refusing an unknown authority proves that TLS is used."""
    with _running_nats(tls(authority.issue(HOST), more="allow_non_tls: true")) as server:
        _connect({**TLS_REQUIRED, "NATS_URL": server.url, "NATS_TLS_CA": str(authority.file)})
        with pytest.raises(RetryableError, match="certificate verify failed"):
            _connect({**TLS_REQUIRED, "NATS_URL": server.url, "NATS_TLS_CA": str(Authority(tmp_path, "another").file)})
        _connect({**PLAINTEXT, "NATS_URL": server.url})


def test_server_without_tls_receives_no_password(authority: Authority) -> None:
    """An attacker sends the INFO message of a server without TLS, and receives only a TLS handshake."""
    received = bytearray()
    with socket.create_server((HOST, 0)) as listener:

        def impersonate_server() -> None:
            client, _ = listener.accept()
            with client:
                client.sendall(b'INFO {"server_id":"x","version":"2.12.0","proto":1,"auth_required":true}\r\n')
                client.settimeout(10)
                received.extend(client.recv(65536))

        thread = threading.Thread(target=impersonate_server)
        thread.start()
        url = f"nats://grantwire:hunter2@{HOST}:{listener.getsockname()[1]}"
        with pytest.raises(RetryableError):
            _connect(
                {**TLS_REQUIRED, "NATS_URL": url, "NATS_TLS_CA": str(authority.file), "NATS_CONNECT_TIMEOUT": "1s"}
            )
        thread.join()
    assert received[:1] == b"\x16"  # a TLS handshake record
    assert b"hunter2" not in received
    assert b"CONNECT" not in received


def test_token_logs_in() -> None:
    """A user without a password in the URL is a token, as in every NATS client."""
    with _running_nats('authorization { token: "to/ken" }') as server:
        _connect({**PLAINTEXT, "NATS_URL": f"nats://to%2Fken@{server.address}"})
        with pytest.raises(RetryableError, match="Authorization Violation"):
            _connect({**PLAINTEXT, "NATS_URL": server.url})


def test_credentials_file_logs_in() -> None:
    """It contains the user JWT and the seed that signs the server's nonce."""
    company, stranger = Operator(), Operator()
    with _running_nats(company.server_configuration()) as server:

        async def log_in(credentials: str) -> None:
            endpoint = parse_secret(json.dumps({"url": server.url, "credentials": credentials}))
            settings = replace(load(NatsSettings, {**PLAINTEXT, "NATS_URL": server.url}), endpoint=endpoint)
            connection = NatsConnection(settings, name="test")
            await connection.connect()
            await connection.flush()
            await connection.close()

        asyncio.run(log_in(company.credentials()))
        with pytest.raises(RetryableError, match="Authorization Violation"):
            asyncio.run(log_in(stranger.credentials()))
        jwt, seed = company.credentials().partition("*")[0], company.credentials().partition("*")[2]
        with pytest.raises(RetryableError, match="Authorization Violation"):
            asyncio.run(log_in(jwt + seed))
        for invalid in ("", "hunter2", company.credentials().partition("*")[0]):
            with pytest.raises(ConfigError) as caught:
                asyncio.run(log_in(invalid))
            assert "hunter2" not in str(caught.value)
