"""Serializers convert the result of the work to text, which every store can hold, and back (C16)."""

from __future__ import annotations

import json
from typing import Any, Protocol


class Serializer(Protocol):
    """Converts results. `load(dump(value))` is what a duplicate returns."""

    def dump(self, value: Any) -> str:
        """Return the value as text. Raises TypeError or ValueError if that is not possible."""

    def load(self, text: str) -> Any:
        """Return the value of a text. Raises ValueError if the text is invalid."""


class JsonSerializer:
    """JSON: the default. A tuple becomes a list; NaN and infinity are refused, because other readers refuse them."""

    def dump(self, value: Any) -> str:
        """See `Serializer`."""
        return json.dumps(value, allow_nan=False)

    def load(self, text: str) -> Any:
        """See `Serializer`."""
        return json.loads(text)
