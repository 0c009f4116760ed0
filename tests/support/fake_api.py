"""An HTTP server on 127.0.0.1 that behaves like the API, for tests of the grantwire command.

It keeps entitlements and idempotency keys as openapi.yaml describes them. A test can plan faults: responses that
replace those of the next requests, before or after these take effect.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

TOKEN = "gw_dev_000000000000_secret"
TIME = "2026-01-08T07:10:00.000000Z"
OPERATIONS = {
    "/v1/entitlements/grants": "grant",
    "/v1/entitlements/revokes": "revoke",
    "/v1/entitlements/extensions": "extend",
}
MAX_ITEMS, MAX_BATCH_BYTES = 100, 256 * 1024


@dataclass(frozen=True)
class Call:
    """A request that the server received."""

    method: str
    path: str
    query: Mapping[str, str]
    key: str
    body: Any


@dataclass
class Reply:
    """A response: its status, body and headers."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Fault:
    """A planned fault: the response that replaces the next one, and whether the request takes effect before it."""

    reply: Reply
    after_effect: bool = False


def error(status: int, code: str, message: str = "planned", **headers: str) -> Reply:
    """Return an error as the API sends it."""
    return Reply(
        status, {"code": code, "message": message}, {name.replace("_", "-"): text for name, text in headers.items()}
    )


class FakeApi:
    """The state of the fake installation and its server."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.entitlements: dict[tuple[str, str], dict[str, Any]] = {}
        self.stored: dict[tuple[str, str], tuple[str, Reply]] = {}
        self.faults: list[Fault] = []
        self.routes: dict[tuple[str, str], Callable[[Call], Reply]] = {}
        self.applied: list[tuple[str, str, str]] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        """The address of the API, with a stage."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/local"

    def start(self) -> None:
        """Serve requests."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def respond(self, method: str, path: str, body: Any, status: int = 200) -> None:
        """Serve a route with a fixed response."""
        self.routes[(method, path)] = lambda _call: Reply(status, body)

    def handle(self, call: Call, authorization: str) -> Reply:
        """Return the response to a request."""
        with self._lock:
            self.calls.append(call)
            if authorization != f"Bearer {TOKEN}":
                return error(403, "FORBIDDEN", "invalid token or missing required scope")
            fault = self.faults.pop(0) if self.faults else None
            if fault and not fault.after_effect:
                return fault.reply
            reply = self._serve(call)
            return fault.reply if fault else reply

    def _serve(self, call: Call) -> Reply:
        if route := self.routes.get((call.method, call.path)):
            return route(call)
        if call.method == "POST" and call.path in OPERATIONS:
            return self._change(OPERATIONS[call.path], call.key, call.body)
        if call.method == "POST" and call.path == "/v1/entitlements/batches":
            return self.execute_batch(call.body)
        parts = call.path.split("/")
        if call.method == "GET" and parts[:3] == ["", "v1", "users"] and parts[4:] == ["entitlements"]:
            return self._list(unquote(parts[3]), call.query)
        return error(404, "NOT_FOUND", "no such path")

    def _change(self, operation: str, key: str, body: dict[str, Any]) -> Reply:
        if not key:
            return error(400, "BAD_REQUEST", "Idempotency-Key header is missing; send a UUID or the purchase_id")
        content = json.dumps(body, sort_keys=True)
        if (operation, key) in self.stored:
            request, reply = self.stored[(operation, key)]
            if request != content:
                return error(409, "IDEMPOTENCY_KEY_CONFLICT", "this Idempotency-Key was used for another request")
            return Reply(reply.status, reply.body, {**reply.headers, "Idempotent-Replayed": "true"})
        reply = self._apply(operation, body)
        self.stored[(operation, key)] = (content, reply)
        return reply

    def _apply(self, operation: str, body: dict[str, Any]) -> Reply:
        name = (body["user_id"], body["stock_keeping_unit"])
        known = self.entitlements.get(name, {"status": "NONE", "version": 0})
        if (operation == "grant") == (known["status"] == "ACTIVE"):
            return error(409, "ENTITLEMENT_STATE_CONFLICT", f"already {known['status']}")
        self.applied.append((operation, *name))
        status = "REVOKED" if operation == "revoke" else "ACTIVE"
        times = {field: body[field] for field in ("starts_at", "expires_at") if body.get(field)}
        changed = {"status": status, "version": known["version"] + 1, "updated_at": TIME, **times}
        self.entitlements[name] = changed
        return Reply(200, {"user_id": name[0], "stock_keeping_unit": name[1], **changed})

    def execute_batch(self, body: dict[str, Any]) -> Reply:
        """Respond to a batch, as the route does."""
        if not 1 <= len(body["items"]) <= MAX_ITEMS:
            return error(400, "BAD_REQUEST", "items must have between 1 and 100 entries")
        if len(json.dumps(body).encode()) > MAX_BATCH_BYTES:
            return error(413, "TOO_LARGE", "the body must have at most 262144 bytes")
        results = []
        for item in body["items"]:
            change = {name: value for name, value in item.items() if name not in {"operation", "idempotency_key"}}
            reply = self._change(item["operation"], item["idempotency_key"], change)
            replayed = reply.headers.get("Idempotent-Replayed") == "true"
            results.append({"status_code": reply.status, "replayed": replayed, "response": reply.body})
        return Reply(200, {"results": results})

    def _list(self, user: str, query: Mapping[str, str]) -> Reply:
        found = sorted((sku, item) for (owner, sku), item in self.entitlements.items() if owner == user)
        page = [{"stock_keeping_unit": sku, **item} for sku, item in found if sku > query.get("after", "")]
        limit = int(query.get("limit", "1000"))
        more = {"next_after": page[limit - 1]["stock_keeping_unit"]} if len(page) > limit else {}
        return Reply(200, {"user_id": user, "entitlements": page[:limit], **more})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def _respond(self) -> None:
                parts = urlsplit(self.path)
                text = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                call = Call(
                    self.command,
                    parts.path.removeprefix("/local"),
                    dict(parse_qsl(parts.query, keep_blank_values=True)),
                    self.headers.get("Idempotency-Key", ""),
                    json.loads(text) if text else None,
                )
                reply = api.handle(call, self.headers.get("Authorization", ""))
                content = json.dumps(reply.body).encode()
                self.send_response(reply.status)
                for name, value in {**reply.headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = _respond  # noqa: N815  # names of the standard library

            def log_message(self, *_arguments: object) -> None:
                pass

        return Handler


def serve() -> Iterator[FakeApi]:
    """Provide a running fake installation."""
    api = FakeApi()
    api.start()
    try:
        yield api
    finally:
        api.stop()
