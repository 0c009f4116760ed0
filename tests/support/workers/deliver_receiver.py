"""A notification to send, and a webhook receiver on 127.0.0.1 whose responses the test decides."""

from __future__ import annotations

import base64
import json
import threading
import uuid
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from grantwire.notifications.store import Notification

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping
    from typing import Self


PAYLOAD = {
    "event_id": str(uuid.uuid4()),
    "event_type": "EntitlementGranted",
    "occurred_at": "2026-01-08T07:10:00.000000Z",
    "user_id": "u_é",
    "stock_keeping_unit": "item1",
    "source": "purchase",
    "source_id": "p_456",
    "version": 12,
}


# Two keys that sign webhooks.
KEY, NEW_KEY = (f"whsec_{base64.b64encode(bytes([number] * 32)).decode()}" for number in (1, 2))


def notification(**fields: Any) -> Notification:
    """Return a claimed notification; `fields` replace the defaults."""
    values: dict[str, Any] = {
        "notification_id": uuid.uuid4(),
        "event_type": "EntitlementGranted",
        "user_id": "u_é",
        "stock_keeping_unit": "item1",
        "version": 12,
        "payload": PAYLOAD,
        "trace_id": "1-5759e988-bd862e3fe1be46a994272793",
        "attempt_count": 0,
    }
    return Notification(**values | fields)


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request that the receiver got."""

    path: str
    headers: Mapping[str, str]
    content: bytes
    client_port: int

    @property
    def body(self) -> Any:
        """The JSON document in the request."""
        return json.loads(self.content)

    @property
    def key(self) -> str:
        """The value of the Idempotency-Key header."""
        return self.headers["Idempotency-Key"]


class Receiver:
    """An HTTP server in a thread; `respond` returns the status, or None to close the connection without a response.

    It keeps connections open, and speaks TLS if `tls` is given.
    """

    def __init__(
        self,
        respond: Callable[[ReceivedRequest], int | None] = lambda _: 204,
        *,
        tls: ssl.SSLContext | None = None,
        **headers: str,
    ) -> None:
        self.respond = respond
        self.headers = headers
        self._scheme = "http" if tls is None else "https"
        self.requests: list[ReceivedRequest] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def url(self) -> str:
        """The URL of the webhook."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}/hook?of=test"

    @property
    def environ(self) -> dict[str, str]:
        """The settings of a sender to this receiver."""
        return {
            "NOTIFICATION_SENDER": "webhook",
            "NOTIFICATION_WEBHOOK_URL": self.url,
            "NOTIFICATION_WEBHOOK_KEYS": KEY,
        }

    def keys(self) -> list[str]:
        """Return the idempotency key of every request, in order."""
        return [request.key for request in self.requests]

    def __enter__(self) -> Self:
        """Start the server."""
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Without it, an idle connection would keep its thread.
            timeout = 60

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                received = ReceivedRequest(self.path, dict(self.headers), data, self.client_address[1])
                receiver.requests.append(received)
                status = receiver.respond(received)
                if status is None:
                    self.close_connection = True
                else:
                    self.send_response(status)
                    for name, value in receiver.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Do not write requests to the output of the test."""

        return Handler
