"""The headers of the message of an outbox event (O3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.events.encoding import encode_headers
from grantwire.observability import build_traceparent

if TYPE_CHECKING:
    from grantwire.outbox.store import ClaimedEvent


def build_headers(event: ClaimedEvent) -> dict[str, str]:
    """Return the message headers of an event, with values of visible ASCII.

    JetStream detects duplicates by Nats-Msg-Id. An event that the stream lost has another one each time, because
    JetStream can still know the first.
    """
    headers = {
        "Nats-Msg-Id": f"{event.event_id}:again:{event.republication}" if event.republication else event.event_id,
        "event_id": event.event_id,
        "event_type": event.event_type,
        "aggregate_key": event.aggregate_key,
        "occurred_at": str(event.payload["occurred_at"]),
    }
    if event.trace_id:
        headers["trace_id"] = event.trace_id
        if traceparent := build_traceparent(event.trace_id, event.event_id):
            headers["traceparent"] = traceparent
    return encode_headers(headers)
