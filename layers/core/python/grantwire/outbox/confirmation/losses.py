"""The SQL of stream_losses: ranges of messages that the stream lost, and the examination of their events (W1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from grantwire.outbox.confirmation.store import PublishedEvent

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from grantwire.database import Connection
    from grantwire.outbox.confirmation.store import Turn

_MAX_SEQUENCE = 2**63 - 1


class Loss(NamedTuple):
    """A loss that was found: its cause, the range of sequences as far as it is known, and which events to examine.

    Those are the events published after `examine_after` (None: all that the mark has not passed), with sequences below
    `examine_below`.
    """

    cause: str
    first_sequence: int | None
    last_sequence: int | None
    examine_after: datetime | None
    examine_below: int = _MAX_SEQUENCE


_RECORD = """
INSERT INTO stream_losses (cause, stream, first_sequence, last_sequence, detected_at, examine_after, examine_below)
VALUES (%(cause)s, %(stream)s, %(first)s, %(last)s, %(now)s,
        coalesce(%(after)s::timestamptz, (SELECT mark FROM outbox_confirmation)), %(below)s)
"""


def record(tx: Connection, turn: Turn, stream: str, loss: Loss) -> None:
    """Record a loss whose events are to be examined."""
    tx.execute(
        _RECORD,
        {
            "cause": loss.cause,
            "stream": stream,
            "first": loss.first_sequence,
            "last": loss.last_sequence,
            "now": turn.now,
            "after": loss.examine_after,
            "below": loss.examine_below,
        },
    )


class OpenLoss(NamedTuple):
    """A loss whose events are not all examined. Of a DELETED one only unfinished events are published again."""

    loss_id: int
    cause: str


_FIND_OPEN = """
SELECT loss_id, cause FROM stream_losses WHERE completed_at IS NULL AND loss_id > %(after)s ORDER BY loss_id LIMIT 1
"""


def find_open(tx: Connection, after: int) -> OpenLoss | None:
    """Return the first loss to examine whose id is above `after`."""
    row = tx.execute(_FIND_OPEN, {"after": after}).fetchone()
    return None if row is None else OpenLoss(*row)


# The page is limited before its events are selected, so that the statement is bounded.
_PAGE = """
WITH loss AS MATERIALIZED (SELECT * FROM stream_losses WHERE loss_id = %(loss_id)s),
page AS MATERIALIZED (
  SELECT o.event_id, o.stream_sequence, o.published_at FROM outbox_events o
   WHERE o.published_at > (SELECT coalesce(l.examined_until, l.examine_after) FROM loss l)
     AND o.published_at <= (SELECT l.detected_at FROM loss l)
   ORDER BY o.published_at FETCH FIRST %(limit)s ROWS WITH TIES)
SELECT p.event_id::text, p.stream_sequence, p.published_at FROM page p CROSS JOIN loss l
 WHERE coalesce(p.stream_sequence, 0) < l.examine_below
   AND (l.cause <> 'DELETED' OR NOT EXISTS (SELECT FROM processed_events e WHERE e.event_id = p.event_id))
UNION ALL
SELECT NULL, count(*), max(p.published_at) FROM page p
"""


class Page(NamedTuple):
    """The events of a page to compare with the stream, its last time, and whether it is the last one."""

    events: list[PublishedEvent]
    until: datetime | None
    is_last: bool

    def repeated(self) -> Page:
        """Return the page as it is if the examination begins again, because some of its events are still lost."""
        return self._replace(until=None, is_last=False)


def read_page(tx: Connection, loss: OpenLoss, limit: int) -> Page:
    """Return the next events of a loss, in the order of their publication."""
    *events, (_, read, until) = tx.execute(_PAGE, {"loss_id": loss.loss_id, "limit": limit}).fetchall()
    return Page([PublishedEvent(*event) for event in events], until, read < limit)


# After the last page the examination begins again, until every relay has written what it published before the
# detection.
_ADVANCE = """
UPDATE stream_losses
   SET examined_until = CASE WHEN %(is_last)s THEN NULL ELSE %(until)s::timestamptz END,
       first_sequence = least(first_sequence, %(first)s::bigint),
       last_sequence = greatest(last_sequence, %(last)s::bigint),
       events_lost = events_lost + %(lost)s, events_republished = events_republished + %(republished)s,
       completed_at = CASE WHEN %(is_last)s AND detected_at <= %(now)s::timestamptz - %(grace)s::interval
                           THEN %(now)s::timestamptz END
 WHERE loss_id = %(loss_id)s
"""


def advance(  # noqa: PLR0913 - passed by name
    tx: Connection,
    turn: Turn,
    loss: OpenLoss,
    page: Page,
    *,
    grace: timedelta,
    sequences: list[int],
    lost: int,
    republished: int,
) -> None:
    """Write the outcome of a page; `sequences` are those of its lost messages."""
    tx.execute(
        _ADVANCE,
        {
            "loss_id": loss.loss_id,
            "now": turn.now,
            "grace": grace,
            "until": page.until,
            "is_last": page.is_last,
            "first": min(sequences, default=None),
            "last": max(sequences, default=None),
            "lost": lost,
            "republished": republished,
        },
    )


# An event that was published twice has one row, so that two rows have one sequence only after a cut.
_FIND_REUSED = """
SELECT min(reused.published_at)
  FROM (SELECT max(recent.published_at) AS published_at
          FROM (SELECT o.stream_sequence, o.published_at FROM outbox_events o
                 WHERE o.published_at > %(after)s AND o.published_at <= %(until)s
                 ORDER BY o.published_at LIMIT %(limit)s) AS recent
         GROUP BY recent.stream_sequence HAVING count(*) > 1) AS reused
"""


def find_reused(tx: Connection, after: datetime, until: datetime, limit: int) -> datetime | None:
    """Return when a sequence was first used again for another event, between two times; None if none was."""
    row = tx.execute(_FIND_REUSED, {"after": after, "until": until, "limit": limit}).fetchone()
    return None if row is None else row[0]


_FIND_NEAREST = """
SELECT event_id::text, stream_sequence, published_at FROM outbox_events
 WHERE published_at > %(after)s AND published_at <= %(until)s
 ORDER BY published_at DESC LIMIT 1
"""


def find_last_published(tx: Connection, after: datetime, until: datetime) -> PublishedEvent | None:
    """Return the last event that was published between two times."""
    row = tx.execute(_FIND_NEAREST, {"after": after, "until": until}).fetchone()
    return None if row is None else PublishedEvent(*row)


_FIND_OLDEST = """
SELECT min(stream_sequence), min(published_at)
  FROM (SELECT stream_sequence, published_at FROM outbox_events
         WHERE published_at > %(after)s ORDER BY published_at LIMIT 20) AS oldest
"""


def find_oldest(tx: Connection, after: datetime) -> tuple[int | None, datetime | None]:
    """Return the lowest sequence of the oldest events that were published after a time, and the first time."""
    row = tx.execute(_FIND_OLDEST, {"after": after}).fetchone()
    return (None, None) if row is None else (row[0], row[1])
