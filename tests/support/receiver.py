"""The receiver of notifications, which a test can switch off."""

from __future__ import annotations

import base64
import threading
from collections import Counter
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

WEBHOOK_KEY = f"whsec_{base64.b64encode(b'k' * 32).decode()}"
# A notification that the receiver refuses is a dead letter after a second.
DELIVERY = {
    "NOTIFICATION_DELIVERY_POLL_INTERVAL": "200ms",
    "NOTIFICATION_DELIVERY_MAX_ATTEMPTS": "2",
    "NOTIFICATION_DELIVERY_BACKOFF_BASE": "200ms",
    "NOTIFICATION_DELIVERY_BACKOFF_MIN": "100ms",
    "NOTIFICATION_DELIVERY_BACKOFF_MAX": "500ms",
}


class Receiver:
    """An HTTP server on 127.0.0.1 that responds with `status` to each notification that contains `selected`.

    `accepted` has how often it accepted each notification, by its id.
    """

    def __init__(self) -> None:
        self.accepted: Counter[str] = Counter()
        self.status = 204
        self.selected = b""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Where notifications are sent."""
        return f"http://127.0.0.1:{self._server.server_port}/notifications"

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of a stack whose notifications are sent here."""
        return {
            "NotificationSender": "webhook",
            "WebhookUrl": self.url,
            "WebhookKeys": WEBHOOK_KEY,
            "Settings": ",".join(f"{name}={value}" for name, value in DELIVERY.items()),
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.status if receiver.selected in body else 204
                if status == HTTPStatus.NO_CONTENT:
                    receiver.accepted[self.headers["webhook-id"]] += 1
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                """Write nothing."""

        return Handler
