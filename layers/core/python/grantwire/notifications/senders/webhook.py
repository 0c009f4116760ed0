"""Tells an HTTP receiver: one POST for each notification, with `Idempotency-Key` set to the notification's id.

2xx means that the receiver has it. 408, 425, 429 and 5xx pass, and so does whatever keeps an answer from coming. Every
other answer is final: a redirect too, because following it would send a person's data where nobody configured it.
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

_TEMPORARY = {408, 425, 429}


class WebhookSender:
    """A connection for each notification, so that none depends on what became of another."""

    def __init__(self, url: str, timeout: timedelta, concurrency: int) -> None:
        parts = urlsplit(url)
        self.concurrency = concurrency
        self._connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host = parts.hostname or ""
        self._port = parts.port
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._timeout = timeout.total_seconds()

    def send(self, notification: Notification) -> None:
        """POST it; every wait for the network ends after the timeout."""
        connection = self._connect(self._host, self._port, timeout=self._timeout)
        try:
            connection.request("POST", self._target, json.dumps(notification.body()).encode(), _headers(notification))
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise RetryableError(f"no answer from the receiver: {error!r}") from error
        finally:
            connection.close()
        _judge(status)


def _headers(notification: Notification) -> dict[str, str]:
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": str(notification.notification_id),
        "User-Agent": "grantwire",
    }
    if notification.trace_id:
        headers["X-Amzn-Trace-Id"] = "Root=" + quote(notification.trace_id, safe="-")
    return headers


def _judge(status: int) -> None:
    if 200 <= status < 300:  # noqa: PLR2004 - HTTP's own numbers
        return
    if status in _TEMPORARY or status >= 500:  # noqa: PLR2004
        raise RetryableError(f"the receiver answered {status}")
    raise RejectedError(f"the receiver answered {status}")
