"""NATS over TLS and with credentials: the server proves its name before it is told who we are."""

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
from grantwire.jetstream.settings import NatsSettings, access_of
from grantwire.settings import load
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

AWKWARD = "p@ss:w/rd?#%41 ü"
SECURED = {"NATS_TLS": "verify", "PLAINTEXT_ALLOWED": "false"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whom the tests believe."""
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def _serving(configuration: str) -> Iterator[SecuredNats]:
    server = SecuredNats(STATE / f"secured-nats-{uuid.uuid4().hex[:8]}", configuration)
    server.start()
    try:
        yield server
    finally:
        server.destroy()


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[SecuredNats]:
    """A server with TLS and a user whose password needs encoding."""
    with _serving(tls(authority.issue(HOST, "localhost"), more=user("grantwire", AWKWARD))) as server:
        yield server


def _try(environ: dict[str, str]) -> None:
    """Connect and hear an answer, or raise."""

    async def scenario() -> None:
        broker = NatsConnection(load(NatsSettings, environ))
        await broker.connect()
        await broker.client.flush()
        await broker.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("scheme", ["nats", "tls"])
def test_a_user_logs_in_over_tls(scheme: str, secured: SecuredNats, authority: Authority) -> None:
    """Whatever the scheme, and whatever the password is made of: the address has it percent-encoded."""
    url = f"{scheme}://grantwire:{quote(AWKWARD, safe='')}@{secured.address}"
    for certificates in (str(authority.file), authority.file.read_text().strip()):
        _try({**SECURED, "NATS_URL": url, "NATS_TLS_CA": certificates})


def test_tls_in_an_address_counts_where_tls_is_off(secured: SecuredNats, authority: Authority) -> None:
    """What an address promises is kept: another authority is not believed."""
    url = f"tls://grantwire:{quote(AWKWARD, safe='')}@{secured.address}"
    _try({**PLAINTEXT, "NATS_URL": url, "NATS_TLS_CA": str(authority.file)})
    with pytest.raises(RetryableError, match="certificate verify failed"):
        _try({**PLAINTEXT, "NATS_URL": url})


def test_a_wrong_password_is_refused_without_being_quoted(secured: SecuredNats, authority: Authority) -> None:
    """Neither in the error nor in what it came from."""
    with pytest.raises(RetryableError, match="Authorization Violation") as caught:
        _try({**SECURED, "NATS_URL": f"nats://grantwire:hunter2@{secured.address}", "NATS_TLS_CA": str(authority.file)})
    assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"


def test_another_authority_is_not_believed(secured: SecuredNats, tmp_path: Path) -> None:
    """The error says what is missing."""
    with pytest.raises(RetryableError, match="NATS_TLS_CA must hold the authority"):
        _try({**SECURED, "NATS_URL": secured.url, "NATS_TLS_CA": str(Authority(tmp_path, "another").file)})


def test_another_host_s_certificate_is_not_believed(authority: Authority) -> None:
    """Nor one that has expired."""
    environ = {**SECURED, "NATS_TLS_CA": str(authority.file)}
    with (
        _serving(tls(authority.issue("elsewhere.example"))) as server,
        pytest.raises(RetryableError, match="a name that the server's certificate holds"),
    ):
        _try(environ | {"NATS_URL": server.url})
    with (
        _serving(tls(authority.issue(HOST, expires=datetime.now(UTC)))) as server,
        pytest.raises(RetryableError, match="certificate has expired"),
    ):
        _try(environ | {"NATS_URL": server.url})


def test_a_server_without_tls_is_refused(nats_server: NatsServer, authority: Authority) -> None:
    """It never falls back."""
    with pytest.raises(RetryableError, match="does this port speak TLS"):
        _try({**SECURED, "NATS_URL": nats_server.url, "NATS_TLS_CA": str(authority.file)})


def test_a_server_that_leaves_the_choice_is_spoken_to_over_tls(authority: Authority, tmp_path: Path) -> None:
    """Its greeting asks for nothing; that another authority is refused shows that TLS was spoken."""
    with _serving(tls(authority.issue(HOST), more="allow_non_tls: true")) as server:
        _try({**SECURED, "NATS_URL": server.url, "NATS_TLS_CA": str(authority.file)})
        with pytest.raises(RetryableError, match="certificate verify failed"):
            _try({**SECURED, "NATS_URL": server.url, "NATS_TLS_CA": str(Authority(tmp_path, "another").file)})
        _try({**PLAINTEXT, "NATS_URL": server.url})


def test_whoever_answers_without_tls_hears_no_password(authority: Authority) -> None:
    """Somebody between us and NATS greets as a plain server does: what comes is the beginning of TLS, no more."""
    heard = bytearray()
    with socket.create_server((HOST, 0)) as door:

        def pretend() -> None:
            client, _ = door.accept()
            with client:
                client.sendall(b'INFO {"server_id":"x","version":"2.12.0","proto":1,"auth_required":true}\r\n')
                client.settimeout(10)
                heard.extend(client.recv(65536))

        thread = threading.Thread(target=pretend)
        thread.start()
        url = f"nats://grantwire:hunter2@{HOST}:{door.getsockname()[1]}"
        with pytest.raises(RetryableError):
            _try({**SECURED, "NATS_URL": url, "NATS_TLS_CA": str(authority.file), "NATS_CONNECT_TIMEOUT": "1s"})
        thread.join()
    assert heard[:1] == b"\x16"  # a handshake
    assert b"hunter2" not in heard
    assert b"CONNECT" not in heard


def test_a_token_logs_in() -> None:
    """An address with one name and no password is a token, as in any client of NATS."""
    with _serving('authorization { token: "to/ken" }') as server:
        _try({**PLAINTEXT, "NATS_URL": f"nats://to%2Fken@{server.address}"})
        with pytest.raises(RetryableError, match="Authorization Violation"):
            _try({**PLAINTEXT, "NATS_URL": server.url})


def test_a_credentials_file_logs_in() -> None:
    """Of an operator's NATS: the user's token, and a signature that only the seed can make."""
    company, stranger = Operator(), Operator()
    with _serving(company.server_configuration()) as server:

        async def log_in(credentials: str) -> None:
            access = access_of(json.dumps({"url": server.url, "credentials": credentials}))
            settings = replace(load(NatsSettings, {**PLAINTEXT, "NATS_URL": server.url}), access=access)
            connection = NatsConnection(settings, name="test")
            await connection.connect()
            await connection.flush()
            await connection.close()

        asyncio.run(log_in(company.credentials()))
        with pytest.raises(RetryableError, match="Authorization Violation"):
            asyncio.run(log_in(stranger.credentials()))
        token, seed = company.credentials().partition("*")[0], company.credentials().partition("*")[2]
        with pytest.raises(RetryableError, match="Authorization Violation"):
            asyncio.run(log_in(token + seed))
        for broken in ("", "hunter2", company.credentials().partition("*")[0]):
            with pytest.raises(ConfigError) as caught:
                asyncio.run(log_in(broken))
            assert "hunter2" not in str(caught.value)
