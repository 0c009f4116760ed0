"""A response as the text that a store keeps."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from grantwire_idempotency._internal.middleware.messages import HttpResponse

if TYPE_CHECKING:
    from collections.abc import Collection


class ResponseSerializer:
    """Keeps status, body and the named headers of a response; a `Serializer`."""

    def __init__(self, headers: Collection[str]) -> None:
        self._headers = frozenset(name.lower() for name in headers)

    def dump(self, response: HttpResponse) -> str:
        """Return the response as JSON. A body that is no text is in Base64."""
        headers = [[name.lower(), value] for name, value in response.headers if name.lower() in self._headers]
        try:
            body = {"text": response.body.decode()}
        except UnicodeDecodeError:
            body = {"base64": base64.b64encode(response.body).decode()}
        return json.dumps({"status": response.status, "headers": headers, **body}, separators=(",", ":"))

    def load(self, text: str) -> HttpResponse:
        """Return the response. Raises ValueError if the text is no stored response."""
        try:
            stored = json.loads(text)
            body = stored["text"].encode() if "text" in stored else base64.b64decode(stored["base64"], validate=True)
            headers = tuple((str(name), str(value)) for name, value in stored["headers"])
            return HttpResponse(int(stored["status"]), headers, body)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("this is no stored response") from error
