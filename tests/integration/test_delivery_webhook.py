"""D3: the webhook sender against a real HTTP server: every class of status, timeouts and connection errors."""

from __future__ import annotations

import socket
import time
from datetime import timedelta

import pytest

from grantwire.errors import RejectedError, RetryableError
from grantwire.notifications.senders.webhook import WebhookSender
from tests.support.workers.deliver_receiver import PAYLOAD, Receiver, notification


def webhook(url: str, timeout: float = 3) -> WebhookSender:
    """Return a sender to `url`."""
    return WebhookSender(url, timedelta(seconds=timeout), 1)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_means_accepted(status: int) -> None:
    """D3: the notification id is the idempotency key."""
    sent = notification()
    with Receiver(lambda _: status) as receiver:
        webhook(receiver.url).send(sent)
    (request,) = receiver.requests
    assert request.body == {"notification_id": str(sent.notification_id), **PAYLOAD}
    assert request.headers["Idempotency-Key"] == str(sent.notification_id)
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["X-Amzn-Trace-Id"] == "Root=1-5759e988-bd862e3fe1be46a994272793"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422, 499])
def test_4xx_is_permanent(status: int) -> None:
    """D3: the receiver would refuse it again."""
    with Receiver(lambda _: status) as receiver, pytest.raises(RejectedError, match=f"responded with status {status}"):
        webhook(receiver.url).send(notification())


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_5xx_and_transient_4xx_are_retryable(status: int) -> None:
    """D3: 5xx, and 408, 425 and 429."""
    with Receiver(lambda _: status) as receiver, pytest.raises(RetryableError, match=f"responded with status {status}"):
        webhook(receiver.url).send(notification())


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 304])
def test_redirect_is_not_followed(status: int) -> None:
    """D3: its target is not configured."""
    with Receiver() as target, Receiver(lambda _: status, Location=target.url) as receiver:
        with pytest.raises(RejectedError, match=f"responded with status {status}"):
            webhook(receiver.url).send(notification())
        assert target.requests == []


def test_slow_receiver_times_out() -> None:
    """D3: a timeout is retryable."""

    def slow(_: object) -> int:
        time.sleep(0.5)
        return 200

    started = time.monotonic()
    with Receiver(slow) as receiver:
        with pytest.raises(RetryableError, match=r"[Tt]imed? ?out"):
            webhook(receiver.url, timeout=0.1).send(notification())
        assert time.monotonic() - started < 0.4


def test_missing_response_is_retryable() -> None:
    """D3: connection refused, connection closed, unknown host, no TLS."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(RetryableError, match="refused"):
            webhook(f"http://127.0.0.1:{port}/").send(notification())
    with Receiver(lambda _: None) as receiver, pytest.raises(RetryableError, match="no response"):
        webhook(receiver.url).send(notification())
    with pytest.raises(RetryableError, match="no response"):
        webhook("http://receiver.invalid/").send(notification())
    with Receiver() as receiver, pytest.raises(RetryableError, match="SSL"):
        webhook(receiver.url.replace("http:", "https:")).send(notification())


def test_trace_id_is_encoded_for_header() -> None:
    """A trace id comes from a caller and must not inject headers."""
    with Receiver() as receiver:
        webhook(receiver.url).send(notification(trace_id="a\r\nEvil: é"))
        webhook(receiver.url).send(notification(trace_id=None))
    assert receiver.requests[0].headers["X-Amzn-Trace-Id"] == "Root=a%0D%0AEvil%3A%20%C3%A9"
    assert "X-Amzn-Trace-Id" not in receiver.requests[1].headers
