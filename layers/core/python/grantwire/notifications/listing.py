"""Lists a user's notifications, to check whether one was sent (D4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.errors import BadRequestError
from grantwire.validation import MAX_NAME_LENGTH, clean_text, parse_page_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from grantwire.database import Database

_MAX_LIMIT = 100


@dataclass(frozen=True, slots=True)
class NotificationPageRequest:
    """A request for the newest `limit` notifications of a user."""

    user_id: str
    limit: int

    @classmethod
    def parse(cls, user_id: object, query: Mapping[str, Sequence[str]]) -> Self:
        """Validate the user_id of the path and the query parameter `limit`; raises BadRequestError."""
        for name, values in query.items():
            if name != "limit":
                raise BadRequestError(f"unknown query parameter {name[:MAX_NAME_LENGTH]!a}; allowed: limit")
            if len(values) != 1:
                raise BadRequestError(f"{name} must be given once")
        limit = parse_page_size(query.get("limit", [str(_MAX_LIMIT)])[0], maximum=_MAX_LIMIT)
        return cls(clean_text("user_id", user_id, max_length=MAX_NAME_LENGTH), limit)


# All notifications of one batch of the bridge have the same created_at, so the version orders those of an entitlement.
# Building the JSON in PostgreSQL costs half of building it in Python, and `||` keeps the order of the keys.
_LIST = """
WITH page AS (
  SELECT *, jsonb_populate_record(NULL::entitlements, payload) AS entitlement,
         row_number() OVER (ORDER BY created_at DESC, version DESC, event_id DESC) AS position
    FROM notifications
   WHERE user_id = %(user_id)s
   ORDER BY created_at DESC, version DESC, event_id DESC
   LIMIT %(limit)s)
SELECT '{"user_id":' || to_json(%(user_id)s::text) || ',"notifications":['
    || coalesce(string_agg(
         '{"notification_id":"' || notification_id || '","event_id":"' || event_id || '","event_type":"' || event_type
         || '","stock_keeping_unit":' || to_json(stock_keeping_unit) || ',"version":' || version
         || ',"status":"' || status || '","attempt_count":' || attempt_count
         || ',"created_at":"' || rfc3339(created_at)
         || '","sent_at":' || coalesce('"' || rfc3339(sent_at) || '"', 'null')
         || entitlement_fields(entitlement, false) || '}',
         ',' ORDER BY position), '')
    || ']}'
  FROM page
"""


class NotificationList:
    """Read access to the notifications of users."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list_for_user(self, page: NotificationPageRequest) -> str:
        """Return the JSON response body with a user's notifications, newest first; raises only RetryableError."""
        (body,) = self._database.fetch_row(_LIST, {"user_id": page.user_id, "limit": page.limit})
        return str(body)
