"""The webhook sender: one POST for each notification, with the notification id as `Idempotency-Key`.

2xx means that the receiver has accepted the notification. 408, 425, 429, 5xx and a missing response are retried. Every
other status is permanent. So is a redirect: following it would send personal data to a host that is not configured.
"""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from grantwire.errors import RejectedError, RetryableError

if TYPE_CHECKING:
    from datetime import timedelta

    from grantwire.notifications.store import Notification

_RETRYABLE_STATUSES = {408, 425, 429}


class WebhookSender:
    """Opens a connection for each notification, so that the failure of one does not affect another."""

    def __init__(self, url: str, timeout: timedelta, concurrency: int) -> None:
        parts = urlsplit(url)
        self.concurrency = concurrency
        self._connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host = parts.hostname or ""
        self._port = parts.port
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._timeout = timeout.total_seconds()

    def send(self, notification: Notification) -> None:
        """POST the notification; each network operation ends after the timeout."""
        connection = self._connect(self._host, self._port, timeout=self._timeout)
        try:
            connection.request("POST", self._target, json.dumps(notification.body()).encode(), _headers(notification))
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise RetryableError(f"no response from the receiver: {error!r}") from error
        finally:
            connection.close()
        _raise_for_status(status)


def _headers(notification: Notification) -> dict[str, str]:
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": str(notification.notification_id),
        "User-Agent": "grantwire",
    }
    if notification.trace_id:
        headers["X-Amzn-Trace-Id"] = "Root=" + quote(notification.trace_id, safe="-")
    return headers


def _raise_for_status(status: int) -> None:
    if 200 <= status < 300:  # noqa: PLR2004 - HTTP's own numbers
        return
    if status in _RETRYABLE_STATUSES or status >= 500:  # noqa: PLR2004
        raise RetryableError(f"receiver responded with status {status}")
    raise RejectedError(f"receiver responded with status {status}")
