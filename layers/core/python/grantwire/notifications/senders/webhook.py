"""The webhook sender: one signed POST for each notification, as the Standard Webhooks specification says (D3, G5).

The notification id is `webhook-id` and `Idempotency-Key`, and never changes. `webhook-timestamp` is the time of this
attempt, so a retry or a redrive is signed anew. `webhook-signature` has one signature for each key, two during a
rotation of the key.

2xx means that the receiver has accepted the notification. 401, 408, 425, 429, 5xx and a missing response are retried,
not before the time in the header `Retry-After` if the response has one.
401 means that the receiver does not accept the signature, so the secret is read again, and a changed one is tried
immediately. Every other status is permanent. So is a redirect: following it would send personal data to a host that is
not configured.
"""

from __future__ import annotations

import http.client
import json
import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from standardwebhooks import Webhook

from grantwire.errors import ConfigError, ReceiverBusyError, RejectedError, RetryableError
from grantwire.notifications.senders.interface import Sender
from grantwire.observability import build_traceparent

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire.notifications.senders.endpoint import WebhookEndpoint
    from grantwire.notifications.senders.exchange import ExchangeClient, Reply
    from grantwire.notifications.store import Notification

_UNAUTHORIZED = 401
_RETRYABLE_STATUSES = {_UNAUTHORIZED, 408, 425, 429}
_MAX_RETRY_AFTER_SECONDS = 24 * 60 * 60


class EndpointSource(Protocol):
    """Reads the endpoint of the webhook."""

    def read(self) -> WebhookEndpoint:
        """Return the endpoint; raise RetryableError or ConfigError if there is none."""

    def refresh(self, rejected: WebhookEndpoint) -> WebhookEndpoint | None:
        """Return the endpoint that replaced `rejected`; None if there is no other. Raises as `read` does."""


class WebhookSender(Sender):
    """Sends to one endpoint. `now` returns the time that is signed, in UTC."""

    def __init__(
        self,
        source: EndpointSource,
        client: ExchangeClient,
        concurrency: int,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._concurrency = concurrency
        self._source = source
        self._client = client
        self._now = now
        self._endpoint: WebhookEndpoint | None = None

    @property
    def concurrency(self) -> int:
        """See `Sender`."""
        return self._concurrency

    def prepare(self) -> None:
        """Read the endpoint, so that nothing is claimed without one; raise RetryableError or ConfigError."""
        self._endpoint = self._source.read()

    def send(self, notification: Notification) -> str:
        """POST the notification; see the module's docstring for the errors."""
        endpoint = self._endpoint or self._source.read()
        reply = self._post(endpoint, notification)
        if reply.status == _UNAUTHORIZED and (renewed := self._refresh(endpoint)) is not None:
            self._endpoint = renewed
            reply = self._post(renewed, notification)
        return _describe_reply(reply, self._now())

    def close(self) -> None:
        """Close the idle connections."""
        self._client.close()

    def _post(self, endpoint: WebhookEndpoint, notification: Notification) -> Reply:
        body = json.dumps(notification.body())
        headers = _headers(notification) | _signature_headers(endpoint, notification, body, self._now())
        try:
            return self._client.post(endpoint.url, body.encode(), headers)
        except (OSError, http.client.HTTPException) as error:
            raise RetryableError(f"no response from the receiver: {error!r}") from error

    def _refresh(self, rejected: WebhookEndpoint) -> WebhookEndpoint | None:
        """Return a changed endpoint; None if the secret is unchanged, unreadable or invalid: 401 is retried later."""
        try:
            return self._source.refresh(rejected)
        except (RetryableError, ConfigError):
            return None


def _headers(notification: Notification) -> dict[str, str]:
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": str(notification.notification_id),
        "User-Agent": "grantwire",
    }
    if notification.trace_id:
        headers["X-Amzn-Trace-Id"] = "Root=" + quote(notification.trace_id, safe="-")
        if traceparent := build_traceparent(notification.trace_id, str(notification.notification_id)):
            headers["traceparent"] = traceparent
    return headers


def _signature_headers(
    endpoint: WebhookEndpoint, notification: Notification, body: str, now: datetime
) -> dict[str, str]:
    """Return the headers of Standard Webhooks. `sign` ignores the time zone, so the time is converted to UTC."""
    message_id, sent_at = str(notification.notification_id), now.astimezone(UTC)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(sent_at.timestamp())),
        "webhook-signature": " ".join(Webhook(key).sign(message_id, sent_at, body) for key in endpoint.keys),
    }


def _describe_reply(reply: Reply, now: datetime) -> str:
    """Return what the receiver responded; raise if it has not accepted the notification."""
    response = f"receiver responded with status {reply.status}"
    if 200 <= reply.status < 300:  # noqa: PLR2004 - HTTP's own numbers
        return response
    if reply.status in _RETRYABLE_STATUSES or reply.status >= 500:  # noqa: PLR2004
        if seconds := _parse_retry_after(reply.retry_after, now):
            raise ReceiverBusyError(response, retry_after=seconds)
        raise RetryableError(response)
    raise RejectedError(response)


def _parse_retry_after(value: str | None, now: datetime) -> int:
    """Return the seconds of the header Retry-After, a number or a time; 0 without a valid one. At most a day."""
    text = (value or "").strip()
    try:
        seconds = int(text) if text.isdecimal() else math.ceil((parsedate_to_datetime(text) - now).total_seconds())
    except (ValueError, TypeError):  # TypeError: a time without a zone
        return 0
    return min(max(seconds, 0), _MAX_RETRY_AFTER_SECONDS)
