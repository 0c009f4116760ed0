"""The SQL of `dead_letters`, the view of all open dead letters."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from grantwire.database import Connection
    from grantwire.dead_letters.commands import DeadLetterCommand


class DeadLetter(NamedTuple):
    """An open dead letter.

    `event_time` is when its event occurred, if known. `has_copy` is false if the message was not copied, so that it can
    only be discarded.
    """

    dead_letter_id: UUID
    event_time: datetime | None
    has_copy: bool


_LIST_OPEN = """
SELECT dead_letter_id, event_time, has_copy
  FROM dead_letters
 WHERE kind = %(kind)s
   AND dead_letter_id > coalesce(%(after)s::uuid, '00000000-0000-0000-0000-000000000000')
   AND (%(ids)s::uuid[] IS NULL OR dead_letter_id = ANY(%(ids)s::uuid[]))
   AND (%(event_type)s::text IS NULL OR event_type = %(event_type)s::text)
   AND (%(user_id)s::text IS NULL OR user_id = %(user_id)s::text)
   AND (%(stock_keeping_unit)s::text IS NULL OR stock_keeping_unit = %(stock_keeping_unit)s::text)
   AND (%(cause)s::text IS NULL OR cause = %(cause)s::text)
   AND (%(error)s::text IS NULL OR strpos(error, %(error)s::text) > 0)
   AND (%(older_than)s::interval IS NULL OR since < %(now)s::timestamptz - %(older_than)s::interval)
   AND (%(until)s::timestamptz IS NULL OR since <= %(until)s::timestamptz)
   AND (%(newer_than)s::interval IS NULL OR since > %(now)s::timestamptz - %(newer_than)s::interval)
 ORDER BY dead_letter_id
 LIMIT %(limit)s
"""


def list_open(
    tx: Connection,
    command: DeadLetterCommand,
    now: datetime,
    after: UUID | None,
    limit: int,
    *,
    until: datetime | None = None,
) -> list[DeadLetter]:
    """Return the next open dead letters after the id `after` that the command selects, in order of their ids.

    With `until`, dead letters that appeared later are not selected.
    """
    parameters = {
        "kind": command.kind,
        "after": after,
        "ids": None if command.ids is None else list(command.ids),
        **asdict(command.filter),
        "now": now,
        "until": until,
        "limit": limit,
    }
    return [DeadLetter(*row) for row in tx.execute(_LIST_OPEN, parameters)]
