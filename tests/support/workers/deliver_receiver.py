"""A notification to send, and a receiver of webhooks on 127.0.0.1 that answers as the test says."""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from grantwire.notifications.store import Notification

if TYPE_CHECKING:
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


def notification(**fields: Any) -> Notification:
    """A notification that was claimed."""
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
class Received:
    """One request."""

    path: str
    headers: Mapping[str, str]
    body: Any

    @property
    def key(self) -> str:
        """The idempotency key."""
        return self.headers["Idempotency-Key"]


class Receiver:
    """An HTTP server in a thread; `answer` gives the status, None hangs up without one."""

    def __init__(self, answer: Callable[[Received], int | None] = lambda _: 204, **headers: str) -> None:
        self.answer = answer
        self.headers = headers
        self.requests: list[Received] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_port}/hook?of=test"

    def keys(self) -> list[str]:
        """The key of every request, in order; a set of them is what a receiver that deduplicates has taken."""
        return [request.key for request in self.requests]

    def __enter__(self) -> Self:
        """Listen."""
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                received = Received(self.path, dict(self.headers), json.loads(data))
                receiver.requests.append(received)
                status = receiver.answer(received)
                if status is not None:
                    self.send_response(status)
                    for name, value in receiver.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *_: Any) -> None:
                """The test's output is for the test."""

        return Handler
