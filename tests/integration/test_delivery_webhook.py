"""D3: the webhook sender against a real HTTP server: every class of status, connections and connection errors."""

from __future__ import annotations

import socket
import threading
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.errors import ReceiverBusyError, RejectedError, RetryableError
from grantwire.notifications.senders import SenderSettings, build_sender
from grantwire.settings import load
from tests.support.certificates import Authority
from tests.support.concurrency import run_concurrently
from tests.support.plaintext import PLAINTEXT
from tests.support.workers.deliver_receiver import KEY, PAYLOAD, ReceivedRequest, Receiver, notification

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from grantwire.notifications.senders import Sender


@contextmanager
def webhook(url: str, **settings: str) -> Iterator[Sender]:
    """Provide a sender to `url`; `settings` are variables without their prefix."""
    environ = {f"NOTIFICATION_WEBHOOK_{name}": value for name, value in settings.items()}
    sender = {"NOTIFICATION_SENDER": "webhook", "NOTIFICATION_WEBHOOK_URL": url, "NOTIFICATION_WEBHOOK_KEYS": KEY}
    with closing(build_sender(load(SenderSettings, {**PLAINTEXT, **sender, **environ}))) as built:
        yield built


def send(url: str, **fields: Any) -> None:
    """Send one notification to `url`."""
    with webhook(url) as sender:
        sender.send(notification(**fields))


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_means_accepted(status: int) -> None:
    """D3: the notification id is the idempotency key."""
    sent = notification()
    with Receiver(lambda _: status) as receiver, webhook(receiver.url) as sender:
        sender.send(sent)
    (request,) = receiver.requests
    assert request.body == {"notification_id": str(sent.notification_id), **PAYLOAD}
    assert request.headers["Idempotency-Key"] == str(sent.notification_id)
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["X-Amzn-Trace-Id"] == "Root=1-5759e988-bd862e3fe1be46a994272793"
    assert f"//{request.headers['Host']}/" in receiver.url


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 422, 499])
def test_4xx_is_permanent(status: int) -> None:
    """D3: the receiver would refuse it again."""
    with Receiver(lambda _: status) as receiver, pytest.raises(RejectedError, match=f"responded with status {status}"):
        send(receiver.url)


@pytest.mark.parametrize("status", [401, 408, 425, 429, 500, 502, 503, 504, 599])
def test_5xx_and_transient_4xx_are_retryable(status: int) -> None:
    """D3: 5xx, 408, 425 and 429; and 401, because a key that is not accepted is no fault of the notification."""
    with Receiver(lambda _: status) as receiver, pytest.raises(RetryableError, match=f"responded with status {status}"):
        send(receiver.url)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        ("9999999999", 86400),
        ("Wed, 18 Nov 2099 00:00:00 GMT", 86400),
        ("Wed, 18 Nov 2009 00:00:00 GMT", None),
        ("0", None),
        ("soon", None),
        ("-5", None),
    ],
)
def test_retry_after_of_the_receiver_is_reported(value: str, seconds: int | None) -> None:
    """D2: as a number of seconds or a time, at most a day; an invalid one or one in the past counts as none."""
    headers = {"Retry-After": value}
    with Receiver(lambda _: 503, tls=None, **headers) as receiver, pytest.raises(RetryableError) as caught:
        send(receiver.url)
    assert (caught.value.retry_after if isinstance(caught.value, ReceiverBusyError) else None) == seconds


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 304])
def test_redirect_is_not_followed(status: int) -> None:
    """D3, G5: its target is not configured."""
    with Receiver() as target, Receiver(lambda _: status, Location=target.url) as receiver:
        with pytest.raises(RejectedError, match=f"responded with status {status}"):
            send(receiver.url)
        assert target.requests == []


def test_missing_response_is_retryable() -> None:
    """D3: connection refused, connection closed, unknown host, invalid host name, no TLS."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(RetryableError, match="refused"):
            send(f"http://127.0.0.1:{port}/")
    with Receiver(lambda _: None) as receiver, pytest.raises(RetryableError, match="no response"):
        send(receiver.url)
    for host in ("receiver.invalid", f"{'a' * 64}.invalid"):
        with pytest.raises(RetryableError, match="no response"):
            send(f"http://{host}/")
    with Receiver() as receiver, pytest.raises(RetryableError, match="SSL"):
        send(receiver.url.replace("http:", "https:"))


def test_trace_id_is_encoded_for_header() -> None:
    """A trace id comes from a caller and must not inject headers."""
    with Receiver() as receiver:
        send(receiver.url, trace_id="a\r\nEvil: é")
        send(receiver.url, trace_id=None)
    assert receiver.requests[0].headers["X-Amzn-Trace-Id"] == "Root=a%0D%0AEvil%3A%20%C3%A9"
    assert "X-Amzn-Trace-Id" not in receiver.requests[1].headers


def test_certificate_of_the_receiver_is_verified(tmp_path: Path) -> None:
    """G5: https with a trusted certificate for this host is accepted; another authority or another host is not."""
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    ours = {"TLS_CA": str(authority.file)}
    with Receiver(tls=authority.issue("127.0.0.1").context()) as receiver:
        with webhook(receiver.url, **ours) as sender:
            sender.send(notification())
            sender.send(notification())
        assert len({request.client_port for request in receiver.requests}) == 1
        with (
            webhook(receiver.url, TLS_CA=str(other.file)) as sender,
            pytest.raises(RetryableError, match="CERTIFICATE"),
        ):
            sender.send(notification())
    with (
        Receiver(tls=authority.issue("receiver.example").context()) as impostor,
        webhook(impostor.url, **ours) as sender,
        pytest.raises(RetryableError, match="IP address mismatch"),
    ):
        sender.send(notification())
    assert (len(receiver.requests), impostor.requests) == (2, [])


def test_each_thread_keeps_one_connection() -> None:
    """G5: 40 notifications from four threads need at most four connections; closing the sender closes them."""
    barrier = threading.Barrier(4, timeout=60)

    def respond(_: ReceivedRequest) -> int:
        barrier.wait()
        return 200

    with Receiver(respond) as receiver, webhook(receiver.url, CONCURRENCY="4") as sender:

        def send_ten(_: int) -> None:
            for _ in range(10):
                sender.send(notification())

        run_concurrently(4, send_ten)
        assert len({request.client_port for request in receiver.requests}) == 4
        sender.close()
        run_concurrently(4, lambda _: sender.send(notification()))
        assert len({request.client_port for request in receiver.requests}) == 8


def serve_once(listener: socket.socket, response: bytes) -> None:
    """Accept a connection, read one request, send the response and close the connection."""
    connection, _ = listener.accept()
    with connection:
        received = b""
        while not received.endswith(b"}"):
            received += connection.recv(65536)
        connection.sendall(response)


def test_connection_that_the_receiver_closed_is_replaced() -> None:
    """G5: a receiver may close an idle connection at any time; the next notification costs no attempt."""
    response = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        webhook(f"http://127.0.0.1:{listener.getsockname()[1]}/") as sender,
    ):
        for _ in range(3):
            server = threading.Thread(target=serve_once, args=(listener, response))
            server.start()
            sender.send(notification())
            server.join(60)


def test_request_that_meets_a_closing_connection_is_repeated_once() -> None:
    """G5: the receiver closes the kept connection when it gets the request; the repeat has the same id."""
    respond = iter([200, None, 200, 200, None, None])
    with Receiver(lambda _: next(respond)) as receiver, webhook(receiver.url) as sender:
        sender.send(notification())
        sender.send(notification())
        sender.send(notification())
        with pytest.raises(RetryableError, match="no response"):
            sender.send(notification())
    keys = receiver.keys()
    assert len(keys) == 6
    assert (keys[1], keys[4]) == (keys[2], keys[5])
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 1000000\r\n\r\n" + b"a" * 1_000_000,
        b"Content-Length: 10\r\n\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\nhello\r\n",
        b"Connection: close\r\n\r\n" + b"a" * 100_000,
        b"\r\n" + b"a" * 100,
    ],
    ids=["too long", "incomplete", "invalid chunk", "closing", "until the end"],
)
def test_status_decides_and_the_body_only_ends_the_connection(rest: bytes) -> None:
    """G5: a body is read up to a limit, and no fault in it turns an accepted notification into a failed one."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        webhook(f"http://127.0.0.1:{listener.getsockname()[1]}/") as sender,
    ):
        for _ in range(2):
            server = threading.Thread(target=_serve_ignoring_resets, args=(listener, b"HTTP/1.1 200 OK\r\n" + rest))
            server.start()
            sender.send(notification())
            server.join(60)


def _serve_ignoring_resets(listener: socket.socket, response: bytes) -> None:
    with suppress(ConnectionError):  # the sender does not read a long body to its end
        serve_once(listener, response)
