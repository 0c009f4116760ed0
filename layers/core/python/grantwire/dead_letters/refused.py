"""Which dead letters of messages the bridge would terminate again: no events, or not in the audit (G1, Q2, W8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.dead_letters import store
from grantwire.errors import RejectedError
from grantwire.events.decoding import MAX_EVENT_BYTES, decode_payload
from grantwire.events.genuine import find_genuine, message_digest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from grantwire.database import Connection
    from grantwire.dead_letters.listing import DeadLetter

_AUDIT_BEGIN = "SELECT entitlement_audit_begin()"


@dataclass(frozen=True, slots=True)
class Refused:
    """Dead letters that the bridge would not accept.

    `too_old` are those from before the oldest month of the audit: only an operator can know whether they are genuine.
    The audit should have the events of `not_genuine`, so these did not take place. The messages of `unparsable` are no
    events.
    """

    too_old: frozenset[UUID] = frozenset()
    not_genuine: frozenset[UUID] = frozenset()
    unparsable: frozenset[UUID] = frozenset()


def find_refused(tx: Connection, dead_letters: Sequence[DeadLetter]) -> Refused:
    """Parse the messages of dead letters as the bridge does, and compare their events with the audit."""
    times = {dead_letter.dead_letter_id: dead_letter.event_time for dead_letter in dead_letters}
    events = []
    unparsable = set()
    for dead_letter_id, event_id, message in store.read_messages(tx, list(times), MAX_EVENT_BYTES + 1):
        try:
            events.append((dead_letter_id, event_id, decode_payload(message), message_digest(message)))
        except RejectedError:
            unparsable.add(dead_letter_id)
    genuine = find_genuine(tx, [event[2] for event in events], [event[3] for event in events])
    missing = [event for position, event in enumerate(events) if position not in genuine]
    if not missing:
        return Refused(unparsable=frozenset(unparsable))
    begin = _read_audit_begin(tx)
    # The bridge finds a forced redrive by the event id, so that the header must name the event of the payload.
    too_old = frozenset(
        dead_letter_id
        for dead_letter_id, event_id, payload, _ in missing
        if str(event_id) == payload["event_id"] and (time := times[dead_letter_id]) is not None and time < begin
    )
    return Refused(too_old, frozenset(event[0] for event in missing) - too_old, frozenset(unparsable))


def _read_audit_begin(tx: Connection) -> datetime:
    ((begin,),) = tx.execute(_AUDIT_BEGIN).fetchall()
    time: datetime = begin
    return time
