"""Opaque cursors of pages: the time and the id of the last entry."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from grantwire.errors import BadRequestError

_MAX_LENGTH = 200
_INVALID = "cursor must be next_cursor of the previous page"


class Cursor(NamedTuple):
    """The last entry of a page, in the order of the list."""

    time: datetime
    id: UUID

    def encode(self) -> str:
        """Return the cursor as text for a URL."""
        text = json.dumps([self.time.isoformat(), str(self.id)], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse the text of a cursor; raises BadRequestError if `encode` did not write it."""
        if len(text) > _MAX_LENGTH or not text.isascii():
            raise BadRequestError(_INVALID)
        try:
            time, entry_id = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            cursor = cls(datetime.fromisoformat(time), UUID(entry_id))
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise BadRequestError(_INVALID) from None
        if cursor.time.tzinfo is None or cursor.encode() != text:
            raise BadRequestError(_INVALID)
        return cursor
