"""Calls the deployed API as a client would: over HTTP, knowing nothing but its address and a token."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from tests.support.client import CHANGE, ENTITLEMENTS, GRANTS, REVOKES, Response
from tests.support.contract import assert_matches_contract

if TYPE_CHECKING:
    from collections.abc import Sequence


class Http:
    """A caller, with a token or without one."""

    def __init__(self, api_url: str, token: str = "") -> None:
        self.url = api_url
        self._address = urlsplit(api_url)
        self._token = token

    def send(
        self, method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: str | bytes = b""
    ) -> Response:
        """Send exactly this, and the caller's token; a header may stand twice."""
        token = [("Authorization", f"Bearer {self._token}")] if self._token else []
        connection = http.client.HTTPConnection(self._address.netloc, timeout=60)
        try:
            connection.putrequest(method, self._address.path + path)
            data = body.encode() if isinstance(body, str) else body
            for name, value in (*token, *headers, ("Content-Length", str(len(data)))):
                connection.putheader(name, value)
            connection.endheaders(data)
            answer = connection.getresponse()
            return Response(answer.status, _titled(answer.getheaders()), answer.read().decode())
        finally:
            connection.close()

    def change(self, path: str, key: str, **fields: Any) -> Response:
        """POST a change; `fields` replace those of `CHANGE`."""
        headers = [("Content-Type", "application/json"), ("Idempotency-Key", key)]
        reply = self.send("POST", path, headers, json.dumps(CHANGE | fields))
        assert_matches_contract("POST", path, reply.status, reply.headers, reply.body)
        return reply

    def grant(self, key: str, **fields: Any) -> Response:
        """POST a grant."""
        return self.change(GRANTS, key, **fields)

    def revoke(self, key: str, **fields: Any) -> Response:
        """POST a revoke."""
        return self.change(REVOKES, key, **fields)

    def list_entitlements(self, user_id: str, query: str = "") -> Response:
        """GET a user's rights."""
        reply = self.send("GET", ENTITLEMENTS.replace("{user_id}", quote(user_id, safe="")) + query)
        assert_matches_contract("GET", ENTITLEMENTS, reply.status, reply.headers, reply.body)
        return reply


def _titled(headers: Sequence[tuple[str, str]]) -> dict[str, str]:
    """HTTP does not care for case; the tests spell names as the API document does."""
    return {name.title(): value for name, value in headers}
