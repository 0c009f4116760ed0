"""The timeline of a trace: one entry for each thing that happened, ordered by time (T2)."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.errors import KeyConflictError
from grantwire.operations.wording import count_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# The order of entries with the same time.
_STAGES = (
    *("request", "change", "outbox", "published", "inbox", "read_model", "notification", "attempt", "sent"),
    *("dead_letter", "closed", "operator_action"),
)
_APPLIED = "APPLIED"


class Evidence(NamedTuple):
    """What the tables have: changes of the audit, the stages of their events, the read model, actions of operators."""

    changes: Sequence[Mapping[str, Any]]
    stages: Mapping[str, Sequence[Mapping[str, Any]]]
    read_model: Sequence[Mapping[str, Any]]
    actions: Sequence[Mapping[str, Any]]

    def find(self, stage: str, event_id: str) -> Mapping[str, Any] | None:
        """Return the entry of an event in a stage, if there is one."""
        return next((entry for entry in self.stages[stage] if entry["event_id"] == event_id), None)


class _Entry(NamedTuple):
    stage: str
    at: str
    event_id: str | None
    summary: str
    detail: Mapping[str, Any]


def has_stored_response(change: Mapping[str, Any]) -> bool:
    """Return whether a response was stored with the change. The response to a key conflict is that of no request."""
    return "key_fingerprint" in change["detail"] and change["outcome"] != KeyConflictError.code


def build_timeline(evidence: Evidence) -> list[dict[str, Any]]:
    """Return all entries ordered by time, each with its milliseconds since the first."""
    entries = sorted(_list_entries(evidence), key=lambda entry: (entry.at, _STAGES.index(entry.stage)))
    if not entries:
        return []
    start = datetime.fromisoformat(entries[0].at)
    return [
        {
            "stage": entry.stage,
            "at": entry.at,
            "offset_ms": round((datetime.fromisoformat(entry.at) - start).total_seconds() * 1000, 3),
            "event_id": entry.event_id,
            "summary": entry.summary,
            "detail": {name: value for name, value in entry.detail.items() if value is not None},
        }
        for entry in entries
    ]


def describe_state(change: Mapping[str, Any], evidence: Evidence) -> str:
    """Return how far a change has come, as openapi-operations.yaml explains it."""
    if change["outcome"] != _APPLIED:
        return "REFUSED"
    event_id = change["event_id"]
    outbox, notification = (evidence.find(stage, event_id) for stage in ("outbox", "notifications"))
    dead = [
        entry["state"]
        for stage in ("dead_notifications", "dead_messages")
        for entry in evidence.stages[stage]
        if entry["event_id"] == event_id
    ]
    by_outbox = {"PENDING": "PENDING", "IN_FLIGHT": "PENDING", "DISCARDED": "DISCARDED"}
    by_notification = {"PENDING": "RECORDED", "PROCESSING": "RECORDED", "SENT": "SENT"}
    if outbox is not None and outbox["status"] in by_outbox:
        return by_outbox[outbox["status"]]
    if "OPEN" in dead or (outbox is not None and outbox["failed_at"]):
        return "DEAD_LETTER"
    if notification is not None and notification["status"] in by_notification:
        return by_notification[notification["status"]]
    if "DISCARDED" in dead:
        return "DISCARDED"
    return "PUBLISHED" if outbox is not None and evidence.find("inbox", event_id) is None else "UNKNOWN"


def find_removed(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the stages whose rows retention has deleted: a later stage, or the age of the change, proves that."""
    removed = []
    for change in evidence.changes:
        event_id = change["event_id"]
        has = {stage: evidence.find(stage, event_id) is not None for stage in evidence.stages}
        if has_stored_response(change) and not has["responses"]:
            removed.append(("request", event_id, "the stored response is no longer kept"))
        if change["outcome"] != _APPLIED:
            continue
        if not has["outbox"]:
            removed.append(("outbox", event_id, "published or discarded events are deleted after their retention"))
            if not has["inbox"]:
                removed.append(
                    ("inbox", event_id, "the inbox has no row: deleted after its retention, or not yet written")
                )
        if has["inbox"] and not has["notifications"]:
            removed.append(
                ("notification", event_id, "sent and failed notifications are deleted after their retention")
            )
    return [{"stage": stage, "event_id": event_id, "reason": reason} for stage, event_id, reason in removed]


def _list_entries(evidence: Evidence) -> Iterator[_Entry]:
    for change in evidence.changes:
        yield _describe_change(change)
    for entry in evidence.stages["responses"]:
        summary = f"{entry['route']} got the response {entry['status_code']}"
        yield _Entry("request", entry["at"], entry["event_id"], summary, _without(entry, "event_id", "at"))
    yield from _list_events(evidence)
    yield from _list_notifications(evidence)
    yield from _list_dead_letters(evidence)
    yield from _list_read_model(evidence)
    for action in evidence.actions:
        dry = " (dry run)" if action["dry_run"] else ""
        summary = f"{action['actor']}: {action['action']}{dry}, because: {action['reason']}"
        yield _Entry("operator_action", action["at"], None, summary, _without(action, "at"))


def _describe_change(change: Mapping[str, Any]) -> _Entry:
    if change["outcome"] == _APPLIED:
        summary = f"{change['operation']} applied, version {change['version']}"
    else:
        refusal = change["detail"].get("refusal") or change["outcome"]
        summary = f"{change['operation']} refused: {refusal}"
    detail = {**_without(change, "at", "event_id", "detail"), **change["detail"]}
    return _Entry("change", change["at"], change["event_id"], summary, detail)


def _list_events(evidence: Evidence) -> Iterator[_Entry]:
    # The event is written after its change, in one transaction, but has the time when that transaction began.
    changed_at = {change["event_id"]: change["at"] for change in evidence.changes}
    for event in evidence.stages["outbox"]:
        event_id, error = event["event_id"], f": {event['error']}" if event["error"] else ""
        summary = f"{event['event_type']} is {event['status']}, {count_of(event['attempts'], 'failed attempt')}{error}"
        at = max(event["at"], changed_at.get(event_id, ""))
        yield _Entry("outbox", at, event_id, summary, _without(event, "event_id", "at"))
        if event["published_at"]:
            yield _describe_publication(event)
        if event["failed_at"]:
            detail = {"kind": "outbox", "dead_letter_id": event_id, "state": "OPEN", "error": event["error"]}
            yield _Entry("dead_letter", event["failed_at"], event_id, f"the event is a dead letter{error}", detail)
        if event["discarded_at"]:
            detail = {"kind": "outbox", "dead_letter_id": event_id, "state": "DISCARDED"}
            yield _Entry("closed", event["discarded_at"], event_id, "the event was DISCARDED", detail)
    for entry in evidence.stages["inbox"]:
        yield _Entry("inbox", entry["at"], entry["event_id"], "the bridge has recorded the event", {})


def _describe_publication(event: Mapping[str, Any]) -> _Entry:
    sequence = event["stream_sequence"]
    summary = "NATS has stored the event" + (f" as message {sequence} of the stream" if sequence else "")
    return _Entry("published", event["published_at"], event["event_id"], summary, {"stream_sequence": sequence})


def _list_notifications(evidence: Evidence) -> Iterator[_Entry]:
    for notification in evidence.stages["notifications"]:
        event_id, error = notification["event_id"], f": {notification['error']}" if notification["error"] else ""
        attempts = count_of(notification["attempts"], "failed attempt")
        summary = f"notification is {notification['status']}, {attempts}{error}"
        shown = _without(notification, "event_id", "at", "responses")
        yield _Entry("notification", notification["at"], event_id, summary, shown)
        detail = {"notification_id": notification["notification_id"]}
        responses = list(notification["responses"] or ())
        if notification["sent_at"]:
            response = f": {responses.pop()['response']}" if responses else ""
            summary = f"the receiver has accepted the notification{response}"
            yield _Entry("sent", notification["sent_at"], event_id, summary, detail)
        for attempt in responses:
            yield _Entry("attempt", attempt["at"], event_id, f"not sent: {attempt['response']}", detail)


def _list_dead_letters(evidence: Evidence) -> Iterator[_Entry]:
    for stage in ("dead_notifications", "dead_messages"):
        for entry in evidence.stages[stage]:
            reason = entry["error"] or entry.get("advisory") or "no error was recorded"
            detail = _without(entry, "event_id", "at", "closed_at")
            summary = f"dead letter of kind {entry['kind']}: {reason}"
            yield _Entry("dead_letter", entry["at"], entry["event_id"], summary, detail)
            if entry["closed_at"]:
                yield _Entry("closed", entry["closed_at"], entry["event_id"], f"dead letter {entry['state']}", detail)


def _list_read_model(evidence: Evidence) -> Iterator[_Entry]:
    """Yield the rows of the read model that have a traced change, or a later one of its entitlement.

    Their time is that when the event of their version was recorded, if it is known.
    """
    for row in evidence.read_model:
        versions = {
            change["version"]: change["event_id"]
            for change in evidence.changes
            if change["outcome"] == _APPLIED
            and (change["user_id"], change["stock_keeping_unit"]) == (row["user_id"], row["stock_keeping_unit"])
        }
        if not any(version <= row["version"] for version in versions):
            continue
        event_id = versions.get(row["version"])
        recorded = None if event_id is None else evidence.find("inbox", event_id)
        at = row["at"] if recorded is None else recorded["at"]
        summary = f"the read model has version {row['version']}, {row['status']}"
        yield _Entry("read_model", at, event_id, summary, _without(row, "at"))


def _without(entry: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in names}
