"""G5: a slow receiver holds a sender for at most the timeout, however it is slow."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.errors import ConfigError, RetryableError
from grantwire.settings import load
from grantwire.wiring.workers.deliver_notifications import DeliverySettings
from tests.integration.test_delivery_webhook import webhook
from tests.support.certificates import Authority
from tests.support.plaintext import PLAINTEXT
from tests.support.workers.deliver_receiver import PAYLOAD, Receiver, notification

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from grantwire.notifications.senders import Sender
    from grantwire.notifications.store import Notification

TIMEOUT = "300ms"
# Much shorter than the timeout of each operation, so that only a common deadline ends the exchange.
DRIP_SECONDS = 0.02
# The drip of a whole response, and a receiver that does not respond at all, take longer.
MAX_SECONDS = 15.0

Serve = Callable[[socket.socket, Callable[[bytes], None]], None]


@contextmanager
def slow_server(serve: Serve, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Provide the port of a server; `serve` gets a connection and a function that sends bytes one at a time."""
    is_over = threading.Event()

    def run(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        if context is not None:
            connection = context.wrap_socket(connection, server_side=True)

        def drip(data: bytes) -> None:
            for byte in data:
                if is_over.wait(DRIP_SECONDS):
                    return
                connection.sendall(bytes([byte]))

        with connection, contextlib.suppress(OSError):
            serve(connection, drip)
            is_over.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            is_over.set()
            thread.join(60)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The certificate authority of the receivers."""
    return Authority(tmp_path_factory.mktemp("webhook"))


def slow_status(connection: socket.socket, drip: Callable[[bytes], None]) -> None:
    """Send the status line slowly."""
    connection.recv(65536)
    drip(b"HTTP/1.1 200 " + b"O" * 1000 + b"\r\n\r\n")


def slow_headers(connection: socket.socket, drip: Callable[[bytes], None]) -> None:
    """Send the status at once, and headers slowly."""
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    drip(b"X-Header: value\r\n" * 100)


def interim_responses(connection: socket.socket, drip: Callable[[bytes], None]) -> None:
    """Send nothing but interim responses."""
    connection.recv(65536)
    drip(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


def unread_request(_connection: socket.socket, _drip: Callable[[bytes], None]) -> None:
    """Never read the request."""


def slow_handshake(connection: socket.socket, drip: Callable[[bytes], None]) -> None:
    """Begin a TLS record of the server, and send it slowly."""
    connection.recv(65536)
    connection.sendall(bytes.fromhex("1603030400"))
    drip(bytes.fromhex("020003fc0303") + b"a" * 1000)


@pytest.mark.parametrize("serve", [slow_status, slow_headers, interim_responses, unread_request])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_exchange_ends_at_its_deadline(scheme: str, serve: Serve, authority: Authority) -> None:
    """G5: each byte arrives in time, but the response as a whole does not."""
    large = notification(payload={**PAYLOAD, "source_id": "p" * 20_000_000})
    context = authority.issue("127.0.0.1").context() if scheme == "https" else None
    with (
        slow_server(serve, context) as port,
        webhook(f"{scheme}://127.0.0.1:{port}/", TIMEOUT=TIMEOUT, TLS_CA=str(authority.file)) as sender,
    ):
        assert_times_out(sender, large if serve is unread_request else notification())


@pytest.mark.parametrize("serve", [slow_handshake, unread_request])
def test_handshake_ends_at_the_deadline(serve: Serve) -> None:
    """G5: a receiver that accepts the connection and sends its part of the TLS handshake byte by byte, or nothing."""
    with slow_server(serve) as port, webhook(f"https://127.0.0.1:{port}/", TIMEOUT=TIMEOUT) as sender:
        assert_times_out(sender, notification())


def assert_times_out(sender: Sender, sent: Notification) -> None:
    """Assert that a send fails with a retryable error soon after the timeout."""
    started = time.monotonic()
    with pytest.raises(RetryableError, match="timed out"):
        sender.send(sent)
    assert 0.25 < time.monotonic() - started < MAX_SECONDS


def test_slow_body_is_not_waited_for() -> None:
    """G5: the receiver has accepted the notification with its status; its slow body ends only the connection."""

    def slow_body(connection: socket.socket, drip: Callable[[bytes], None]) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 1000\r\n\r\n")
        drip(b"a" * 1000)

    with slow_server(slow_body) as port, webhook(f"http://127.0.0.1:{port}/", TIMEOUT=TIMEOUT) as sender:
        started = time.monotonic()
        sender.send(notification())
        assert time.monotonic() - started < MAX_SECONDS


def test_slow_receiver_on_a_kept_connection_is_not_called_again() -> None:
    """G5: the timeout covers the repeat on a new connection, too."""
    is_over = threading.Event()
    with Receiver() as receiver, webhook(receiver.url, TIMEOUT=TIMEOUT) as sender:
        sender.send(notification())
        receiver.respond = lambda _: 200 if is_over.wait(60) else 500
        started = time.monotonic()
        with pytest.raises(RetryableError, match="timed out"):
            sender.send(notification())
        assert time.monotonic() - started < MAX_SECONDS
        is_over.set()
    assert len(receiver.requests) == 2


def test_look_up_of_the_name_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """G5: the resolver of the operating system has no timeout that a program can set."""
    is_over = threading.Event()

    def hang(*_: Any, **_options: Any) -> list[Any]:
        is_over.wait(60)
        return []

    with webhook("http://receiver.example/", TIMEOUT=TIMEOUT) as sender:
        monkeypatch.setattr(socket, "getaddrinfo", hang)
        started = time.monotonic()
        with pytest.raises(RetryableError, match="look-up of the host timed out"):
            sender.send(notification())
        assert time.monotonic() - started < MAX_SECONDS
        is_over.set()


def test_every_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """G5: an address that does not respond uses only its share of the time, for example IPv6 without a route."""
    with Receiver() as receiver, socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:  # they fill the backlog, so that the next connection gets no response
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        port = int(receiver.url.split(":")[2].split("/")[0])
        addresses = [full.getsockname(), ("127.0.0.1", port)]
        family = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(*family, address) for address in addresses])
        with webhook("http://receiver.example/", TIMEOUT="600ms") as sender:
            sender.send(notification())
        for client in waiting:
            client.close()
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(("timeout", "lease", "is_valid"), [("2s", "2s", False), ("1999ms", "2s", True)])
def test_timeout_must_be_shorter_than_the_lease(timeout: str, lease: str, is_valid: bool) -> None:
    """G5: otherwise another worker could claim a notification that is still being sent."""
    environ = {
        **PLAINTEXT,
        "DATABASE_URL": "postgresql://u@h/d",
        "NOTIFICATION_SENDER": "webhook",
        "NOTIFICATION_WEBHOOK_SECRET_ARN": "arn",
        "NOTIFICATION_WEBHOOK_TIMEOUT": timeout,
        "NOTIFICATION_DELIVERY_LEASE": lease,
    }
    if is_valid:
        load(DeliverySettings, environ)
        return
    with pytest.raises(ConfigError, match="TIMEOUT must be shorter than NOTIFICATION_DELIVERY_LEASE"):
        load(DeliverySettings, environ)
