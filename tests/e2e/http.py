"""A client of the deployed API, which knows only its address and a token."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from tests.support.client import BATCHES, CHANGE, ENTITLEMENTS, GRANTS, REVOKES, Response
from tests.support.contract import assert_matches_contract

if TYPE_CHECKING:
    from collections.abc import Sequence


class Http:
    """A caller of the API, with or without a token."""

    def __init__(self, api_url: str, token: str = "") -> None:
        self.url = api_url
        self._address = urlsplit(api_url)
        self._token = token

    def send(
        self, method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: str | bytes = b""
    ) -> Response:
        """Send exactly this request, with the caller's token; a header may be repeated."""
        token = [("Authorization", f"Bearer {self._token}")] if self._token else []
        connection = http.client.HTTPConnection(self._address.netloc, timeout=180)
        try:
            connection.putrequest(method, self._address.path + path)
            data = body.encode() if isinstance(body, str) else body
            for name, value in (*token, *headers, ("Content-Length", str(len(data)))):
                connection.putheader(name, value)
            connection.endheaders(data)
            response = connection.getresponse()
            return Response(response.status, _with_title_case(response.getheaders()), response.read().decode())
        finally:
            connection.close()

    def change(self, path: str, key: str, **fields: Any) -> Response:
        """POST a change and check its response against openapi.yaml; `fields` replace those of `CHANGE`."""
        headers = [("Content-Type", "application/json"), ("Idempotency-Key", key)]
        response = self.send("POST", path, headers, json.dumps(CHANGE | fields))
        assert_matches_contract("POST", path, response.status, response.headers, response.body)
        return response

    def grant(self, key: str, **fields: Any) -> Response:
        """POST a grant."""
        return self.change(GRANTS, key, **fields)

    def revoke(self, key: str, **fields: Any) -> Response:
        """POST a revoke."""
        return self.change(REVOKES, key, **fields)

    def get(self, template: str, path: str, *headers: tuple[str, str]) -> Response:
        """GET a path and check the response against openapi.yaml, which has it as `template`."""
        response = self.send("GET", path, headers)
        assert_matches_contract("GET", template, response.status, response.headers, response.body)
        return response

    def batch(self, items: Sequence[object], *, atomic: bool = False) -> Response:
        """POST a batch and check its response against openapi.yaml."""
        body = json.dumps({"items": items, "atomic": atomic})
        response = self.send("POST", BATCHES, [("Content-Type", "application/json")], body)
        assert_matches_contract("POST", BATCHES, response.status, response.headers, response.body)
        return response

    def list_entitlements(self, user_id: str, query: str = "") -> Response:
        """GET a user's entitlements and check the response against openapi.yaml."""
        response = self.send("GET", ENTITLEMENTS.replace("{user_id}", quote(user_id, safe="")) + query)
        assert_matches_contract("GET", ENTITLEMENTS, response.status, response.headers, response.body)
        return response


def _with_title_case(headers: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return headers with title-case names, as in openapi.yaml: HTTP ignores case."""
    return {name.title(): value for name, value in headers}
