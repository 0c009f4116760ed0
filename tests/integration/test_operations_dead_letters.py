"""T1: dead letters in the operations API: pages, groups, and one in full."""

from __future__ import annotations

import base64
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.dead_letters import Pipeline, event_bytes, event_headers
from tests.support.operations import DEAD_LETTER, DISCARD, OPERATOR, REDRIVE, OpsClient
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows
    from tests.support.client import Client

LIST = "/v1/ops/dead-letters"
GROUPS = "/v1/ops/dead-letters/groups"


@pytest.fixture
def ops(database_url: str) -> Iterator[OpsClient]:
    """Caller of the operations API."""
    with OpsClient(database_url) as client:
        yield client


def fail_events(rows: Rows, error: str = "broken", user_id: str | None = None) -> None:
    """Mark outbox events FAILED, one millisecond after the other."""
    rows.execute(
        "UPDATE outbox_events o SET status = 'FAILED', ready = false, last_error = %(error)s, attempt_count = 10,"
        " next_retry_at = '2026-01-08T00:00:00Z'::timestamptz"
        " + (SELECT count(*) FROM outbox_events e WHERE e.event_id < o.event_id) * interval '1 millisecond'"
        " WHERE %(user)s::text IS NULL OR payload->>'user_id' = %(user)s",
        {"error": error, "user": user_id},
    )


def dead_notification(rows: Rows, error: str = "receiver responded with status 500") -> uuid.UUID:
    """Insert a dead letter of a notification."""
    notification_id = uuid.uuid4()
    rows.execute(
        "INSERT INTO notification_dlq (notification_id, event_id, event_type, user_id, stock_keeping_unit, version,"
        " payload, attempt_count, last_error, trace_id)"
        " VALUES (%s, gen_random_uuid(), 'EntitlementGranted', 'u_n', 'item9', 1, %s, 10, %s, 't1')",
        (notification_id, '{"user_id": "u_n"}', error),
    )
    return notification_id


def test_pages_list_every_dead_letter_once_newest_first(ops: OpsClient, client: Client, rows: Rows) -> None:
    """T1: the cursor continues after the last entry; a full last page has none."""
    for number in range(7):
        client.grant(f"k{number}", user_id=f"u{number}")
    fail_events(rows)
    notification = dead_notification(rows)
    seen: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        page = ops.get(LIST, limit="4", **cursor).json
        assert len(page["dead_letters"]) == 4
        seen += page["dead_letters"]
        if "next_cursor" not in page:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert [entry["since"] for entry in seen] == sorted((entry["since"] for entry in seen), reverse=True)
    assert len({entry["dead_letter_id"] for entry in seen}) == len(seen) == 8
    assert (seen[0]["dead_letter_id"], seen[0]["kind"]) == (str(notification), "notification")


@pytest.mark.parametrize(
    ("query", "users"),
    [
        ({}, {"u0", "u1", "u_n"}),
        ({"kind": "outbox"}, {"u0", "u1"}),
        ({"kind": "nats"}, set()),
        ({"cause": "broken"}, {"u0"}),
        ({"cause": "no stream listens to <id>"}, {"u1"}),
        ({"user_id": "u1"}, {"u1"}),
        ({"stock_keeping_unit": "item9"}, {"u_n"}),
        ({"stock_keeping_unit": "item9", "user_id": "u1"}, set()),
        ({"since": "2026-06-01T00:00:00+02:00"}, {"u_n"}),
        ({"state": "closed"}, set()),
    ],
)
def test_filters_select_dead_letters(
    ops: OpsClient, client: Client, rows: Rows, query: dict[str, str], users: set[str]
) -> None:
    """T1: all conditions must match."""
    client.grant("k0", user_id="u0")
    client.grant("k1", user_id="u1")
    fail_events(rows, user_id="u0")
    fail_events(rows, f"no stream listens to {uuid.uuid4()}", user_id="u1")
    dead_notification(rows)
    assert {entry["user_id"] for entry in ops.get(LIST, **query).json["dead_letters"]} == users


@newest_postgres
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"kind": "mail"}, "kind must be one of outbox, notification, nats"),
        ({"state": "all"}, "state must be one of open, closed"),
        ({"since": "yesterday"}, "since must be an RFC 3339 time with a zone"),
        ({"since": "2026-01-08T07:00:00"}, "since must be an RFC 3339 time with a zone"),
        ({"since": "0001-01-01T00:00:00+14:00"}, "since must be in the years 2000 to 9999"),
        ({"limit": "201"}, "limit must be a whole number between 1 and 200"),
        ({"cursor": "e30"}, "cursor must be next_cursor"),
        ({"cursor": "ü"}, "cursor must be next_cursor"),
        ({"cursor": base64.urlsafe_b64encode(b'["2026-01-08","x"]').decode()}, "cursor must be next_cursor"),
        ({"user_id": "a\x00"}, "user_id must not contain"),
        ({"page": "2"}, "unknown query parameter 'page'; allowed: kind, state"),
    ],
)
def test_invalid_query_is_refused_with_what_is_allowed(ops: OpsClient, query: dict[str, str], message: str) -> None:
    """T1: bad input is never an internal error."""
    response = ops.get(LIST, **query)
    assert (response.status, response.code) == (400, "BAD_REQUEST")
    assert message in response.json["message"]


def test_groups_have_counts_and_times(ops: OpsClient, client: Client, rows: Rows) -> None:
    """T1: ids and long numbers in an error do not make a cause of their own; statuses do."""
    for number in range(3):
        client.grant(f"k{number}", user_id=f"u{number}")
        fail_events(rows, f"{uuid.uuid4()} of {uuid.uuid4()} failed after {number}.25 s", user_id=f"u{number}")
    for status in (500, 500, 404):
        dead_notification(rows, f"receiver responded with status {status}")
    groups = ops.get(GROUPS).json
    assert (groups["open"], groups["capped"]) == (6, False)
    assert [(group["kind"], group["cause"], group["count"]) for group in groups["groups"]] == [
        ("outbox", "<id> of <id> failed after <n> s", 3),
        ("notification", "receiver responded with status 500", 2),
        ("notification", "receiver responded with status 404", 1),
    ]
    assert groups["groups"][0]["first_at"] < groups["groups"][0]["last_at"]


@pytest.mark.parametrize("number", [3, 4])
def test_newest_dead_letters_of_each_kind_are_counted(
    ops: OpsClient, client: Client, rows: Rows, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """T1: the response says that there are more, and only then. The status has the same groups."""
    for module in ("dead_letters", "status"):
        monkeypatch.setattr(f"grantwire.operations.{module}._CAP", 3)
    client.grant("k")
    fail_events(rows)
    for letter in range(number):
        dead_notification(rows, "receiver responded with status 404" if letter == 0 else "connection refused")
    found = ops.get(GROUPS).json
    assert (found["open"], found["capped"]) == (4, number > 3)
    counts = {(group["kind"], group["cause"]): group["count"] for group in found["groups"]}
    oldest = {("notification", "receiver responded with status 404"): 1} if number == 3 else {}
    assert counts == {("outbox", "broken"): 1, ("notification", "connection refused"): min(number - 1, 3), **oldest}
    assert ops.get("/v1/ops/status").json["dead_letters"] == found


def test_smaller_groups_are_left_out(ops: OpsClient, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: at most as many groups as the limit; their dead letters are part of `open`."""
    for cause, letters in (("a", 1), ("b", 2), ("c", 3)):
        for _ in range(letters):
            dead_notification(rows, cause)
    for limit in (3, 2):
        monkeypatch.setattr("grantwire.operations.dead_letters._MAX_GROUPS", limit)
        found = ops.get(GROUPS).json
        assert [group["cause"] for group in found["groups"]] == ["c", "b", "a"][:limit]
        assert (found["open"], found["capped"]) == (6, False)


def test_group_of_a_cause_is_a_filter_of_the_list(ops: OpsClient, rows: Rows) -> None:
    """T1: a cause is copied from the groups to the list, also if the error is empty or long."""
    for error in ("", "x" * 600, "receiver says: 'no'"):
        dead_notification(rows, error)
    for group in ops.get(GROUPS).json["groups"]:
        page = ops.get(LIST, cause=group["cause"]).json
        assert len(page["dead_letters"]) == group["count"] == 1


def test_message_of_each_kind_is_shown_decoded(
    environ: dict[str, str], ops: OpsClient, client: Client, rows: Rows
) -> None:
    """T1: the event of a message, or its bytes and the reason why it is none; the recorder knows its user."""
    client.grant("k")
    fail_events(rows)
    notification = dead_notification(rows)
    with Pipeline(environ) as pipeline:
        event_id = uuid.uuid4()
        pipeline.publish(event_bytes(event_id, "u_é"), event_headers(event_id, trace_id="t9"))
        pipeline.terminate_next("bad")
        pipeline.publish(b"\xffnot an event", {}, genuine=False)
        pipeline.terminate_next("poison")
        pipeline.wait_for_advisories(2)
        pipeline.run_recorder()
    shown = {}
    for entry in ops.get(LIST).json["dead_letters"]:
        parameters = {"kind": entry["kind"], "dead_letter_id": entry["dead_letter_id"]}
        detail = ops.get(DEAD_LETTER, parameters).json
        assert {name: detail[name] for name in entry} == entry
        shown[entry["error"]] = detail
    assert shown["broken"]["message"]["decoded"]["user_id"] == "u_123"
    assert shown["broken"]["attempts"] == 10
    (mail,) = (detail for detail in shown.values() if detail["dead_letter_id"] == str(notification))
    assert (mail["message"]["format"], mail["message"]["decoded"], mail["trace_id"]) == (
        "json",
        {"user_id": "u_n"},
        "t1",
    )
    event = shown["MSG_TERMINATED after 1 delivery: bad"]
    assert (event["user_id"], event["stock_keeping_unit"], event["event_id"]) == ("u_é", "item1", str(event_id))
    assert event["message"]["decoded"]["user_id"] == "u_é"
    assert (event["message"]["stream_sequence"], event["trace_id"]) == (1, "t9")
    poison = shown["MSG_TERMINATED after 1 delivery: poison"]["message"]
    assert (poison["decoded"], poison["problem"]) == (None, "not an EntitlementEvent")
    assert base64.b64decode(poison["base64"]) == b"\xffnot an event"
    assert (poison["text"], poison["hex"], poison["size"]) == (None, b"\xffnot an event".hex(" "), 13)


@pytest.mark.parametrize(
    "parameters",
    [
        {"kind": "outbox", "dead_letter_id": str(uuid.UUID(int=1))},
        {"kind": "mail", "dead_letter_id": str(uuid.UUID(int=1))},
        {"kind": "outbox", "dead_letter_id": "1"},
        {"kind": "outbox", "dead_letter_id": str(uuid.UUID(int=1)) + "\n"},
    ],
)
def test_unknown_dead_letter_is_not_found(ops: OpsClient, parameters: dict[str, str]) -> None:
    """T1: 404, for an id of any form."""
    assert ops.get(DEAD_LETTER, parameters).code == "NOT_FOUND"


def test_dry_run_says_what_would_happen_and_leaves_its_action(ops: OpsClient, client: Client, rows: Rows) -> None:
    """T1, G4: nothing changes; the dead letter shows who looked at it, why and from where."""
    client.grant("k")
    fail_events(rows)
    (entry,) = ops.get(LIST).json["dead_letters"]
    body = {"kind": "outbox", "ids": [entry["dead_letter_id"], str(uuid.UUID(int=1))], "dry_run": True, **OPERATOR}
    for path in (REDRIVE, DISCARD):
        done = ops.post(path, "k", body)
        assert (done.status, done.json["selected"], done.json["would_change"]) == (200, 1, 1)
        assert done.json["skipped"] == {"not open: already closed, or unknown id": 1}
    assert ops.get(LIST).json["dead_letters"] == [entry]
    assert rows.execute("SELECT count(*) AS n FROM operator_commands").fetchall() == [{"n": 0}]
    detail = ops.get(DEAD_LETTER, {"kind": "outbox", "dead_letter_id": entry["dead_letter_id"]}).json
    assert [(action["action"], action["actor"], action["dry_run"]) for action in detail["actions"]] == [
        ("discard", "ann", True),
        ("redrive", "ann", True),
    ]
    assert detail["actions"][0]["source"].startswith("client operator, request ")
    assert detail["actions"][0]["source"].endswith("address 203.0.113.7")


def record_action(rows: Rows, actor: str, ids: list[uuid.UUID], minute: int, **fields: Any) -> None:
    """Record an action on notifications."""
    rows.execute(
        "INSERT INTO operator_actions (action_id, batch, actor, reason, source, action, kind, selection, dry_run,"
        " dead_letter_ids, count, occurred_at) VALUES (gen_random_uuid(), 0, %(actor)s, 'why', 'x', %(action)s,"
        " 'notification', '{}', %(dry_run)s, %(ids)s, %(count)s, '2026-01-08T07:00:00Z'::timestamptz"
        " + %(minute)s * interval '1 minute')",
        {
            "actor": actor,
            "ids": ids,
            "count": len(ids),
            "minute": minute,
            "action": "redrive",
            "dry_run": False,
            **fields,
        },
    )


def test_last_action_says_who_changed_a_dead_letter_and_when(ops: OpsClient, rows: Rows) -> None:
    """T1, T11: the newest one for each, in the list and in full, open or closed; a dry run changed nothing."""
    untouched, again, discarded = (dead_notification(rows) for _ in range(3))
    record_action(rows, "alice", [again, discarded], 1)
    record_action(rows, "bob", [again], 2)
    record_action(rows, "carol", [discarded], 3, action="discard")
    record_action(rows, "dave", [untouched, again, discarded], 4, dry_run=True)
    rows.execute(
        "UPDATE notification_dlq SET status = 'DISCARDED', closed_at = now() WHERE notification_id = %s", (discarded,)
    )
    found = {
        entry["dead_letter_id"]: entry["last_action"]
        for state in ("open", "closed")
        for entry in ops.get(LIST, state=state).json["dead_letters"]
    }
    for dead_letter_id, last in found.items():
        parameters = {"kind": "notification", "dead_letter_id": dead_letter_id}
        assert ops.get(DEAD_LETTER, parameters).json["last_action"] == last
    said = {key: last and (last["action"], last["actor"], last["reason"], last["at"]) for key, last in found.items()}
    assert said == {
        str(untouched): None,
        str(again): ("redrive", "bob", "why", "2026-01-08T07:02:00.000000Z"),
        str(discarded): ("discard", "carol", "why", "2026-01-08T07:03:00.000000Z"),
    }
