"""The path of events on the deployed stack. Only the schedules invoke the workers."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import TYPE_CHECKING, Any

import nats
import psycopg
import pytest

from grantwire.events.v1 import EntitlementEvent
from grantwire.identifiers import uuid7
from grantwire.notifications.senders import SenderSettings, build_sender
from grantwire.notifications.store import Notification
from grantwire.settings import load
from infra.local.deployment.template import declared_parameters
from infra.local.servers.emulator import credentials
from infra.local.servers.nats_users import INBOX_PREFIXES, WORKERS
from infra.local.system.processes import wait_for
from tests.e2e.aws import client, invoke
from tests.support.client import INBOX, SUMMARY
from tests.support.contract import assert_matches_contract

if TYPE_CHECKING:
    from collections.abc import Callable

    from infra.local.stack.embedded import EmbeddedStack
    from tests.e2e.http import Http

# A worker is started every minute and works for 63 seconds; the first one may have a cold start.
DELIVERY_TIMEOUT_SECONDS = 75.0

AUDIT = """
INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail, version,
                               status, changed_at)
VALUES (%s, 'e2e', 'GRANT', 'APPLIED', %s, 'item1', '{}', %s, 'ACTIVE', now())
"""
ENQUEUE = "SELECT outbox_enqueue(%s, 'EntitlementGranted', %s, %s, %s, NULL)"
PUBLISHED = "SELECT event_id FROM outbox_events WHERE aggregate_key = %s ORDER BY published_at"
REPAIR_PAYLOAD = "UPDATE outbox_events SET payload = jsonb_set(payload, '{version}', '1') WHERE event_id = %s"


@pytest.fixture
def user() -> str:
    """A new user."""
    return f"u_{uuid.uuid4()}"


def test_notification_of_a_grant_is_sent_by_scheduled_workers(http: Http, user: str) -> None:
    """S3, O9, D1, D4: a change over HTTP appears in the inbox over HTTP; only schedules run in between."""
    granted = http.grant(f"{user}-1", user_id=user).json
    http.revoke(f"{user}-2", user_id=user)
    notifications = {sent["event_type"]: sent for sent in _wait_for(lambda: _sent(http, user, 2))}
    assert {(kind, sent["version"], sent["status"]) for kind, sent in notifications.items()} == {
        ("EntitlementGranted", 1, "SENT"),
        ("EntitlementRevoked", 2, "SENT"),
    }
    sent = notifications["EntitlementGranted"]
    assert sent["stock_keeping_unit"] == granted["stock_keeping_unit"]
    assert sent["created_at"] >= granted["updated_at"]


def test_summary_follows_changes_and_can_be_rebuilt(stack: EmbeddedStack, http: Http, user: str) -> None:
    """P1, P2, S3: scheduled workers update the summary, and a rebuild restores deleted rows."""
    granted = http.grant(f"{user}-1", user_id=user).json
    http.grant(f"{user}-2", user_id=user, stock_keeping_unit="item2")
    revoked = http.revoke(f"{user}-3", user_id=user, stock_keeping_unit="item2").json
    summary = _wait_for(lambda: _summary(http, user, revoked=1))
    assert summary == {
        "user_id": user,
        "active": 1,
        "revoked": 1,
        "active_rights": [granted["stock_keeping_unit"]],
        "last_change": {
            "stock_keeping_unit": "item2",
            "status": "REVOKED",
            "version": 2,
            "changed_at": revoked["updated_at"],
        },
    }
    for source in ("record", "stream"):
        with psycopg.connect(stack.database_url) as tx:
            tx.execute("DELETE FROM user_entitlements WHERE user_id = %s", (user,))
        rebuilt = _operate(stack, http, "read-model/rebuild", source=source)
        assert (rebuilt["status"], rebuilt["result"]["complete"]) == ("DONE", True)
        assert _summary(http, user, revoked=1) == summary


def test_stream_contains_the_event_as_a_protocol_buffer(stack: EmbeddedStack, http: Http, user: str) -> None:
    """N1, O3: every other consumer of the stream reads the same message."""
    granted = http.grant(f"{user}-1", user_id=user).json
    (notification,) = _wait_for(lambda: _sent(http, user, 1))
    event, headers = asyncio.run(_last_event(stack))
    assert (event.event_id, event.user_id, event.version) == (notification["event_id"], user, 1)
    assert (event.event_type, event.stock_keeping_unit) == ("EntitlementGranted", "item1")
    assert (event.source, event.source_id) == ("purchase", "p_456")
    assert event.occurred_at.ToJsonString() == granted["updated_at"]
    assert headers["Nats-Msg-Id"] == headers["event_id"] == event.event_id


def test_event_that_cannot_be_published_waits_for_the_operator(stack: EmbeddedStack, http: Http, user: str) -> None:
    """O5, O8, Q2: it is FAILED immediately and its successor waits; repaired and redriven, both are published in order.

    Two bridges may record them in either order.
    """
    broken, successor = uuid7(), uuid7()
    with psycopg.connect(stack.database_url, autocommit=True) as tx:
        for event_id, version in ((broken, 1), (successor, 2)):
            tx.execute(AUDIT, (event_id, user, version))
            payload = _payload(event_id, user, "one" if event_id == broken else version)
            tx.execute(ENQUEUE, (event_id, f"{user}/item1", version, json.dumps(payload)))
        _wait_for(lambda: _statuses(tx, user) == ["FAILED", "PENDING"])
        tx.execute(REPAIR_PAYLOAD, (broken,))
        redriven = _operate(stack, http, "dead-letters/redrive", kind="outbox", ids=[str(broken)])
        assert redriven["result"]["done"] == 1
        notifications = _wait_for(lambda: _sent(http, user, 2))
        published = tx.execute(PUBLISHED, (f"{user}/item1",)).fetchall()
    assert {(sent["version"], sent["event_id"]) for sent in notifications} == {(1, str(broken)), (2, str(successor))}
    assert [event_id for (event_id,) in published] == [broken, successor]


def test_unreadable_message_becomes_a_dead_letter(stack: EmbeddedStack) -> None:
    """N5, Q1: a message of another publisher is terminated, and its advisory is recorded with the message's bytes."""
    poison = f"poison {uuid.uuid4()}".encode()
    asyncio.run(_publish(stack, poison))
    select = "SELECT kind, reason FROM notification_nats_dlq WHERE payload = %s"
    with psycopg.connect(stack.database_url, autocommit=True) as tx:
        ((kind, reason),) = _wait_for(lambda: tx.execute(select, (poison,)).fetchall())
    assert kind == "MSG_TERMINATED"
    assert reason


def test_sns_sender_reaches_a_queue(stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: the message contains the notification's id, by which the receiver recognises a repeat."""
    sns, sqs = client(stack, "sns"), client(stack, "sqs")
    topic = sns.create_topic(Name=f"t-{uuid.uuid4()}")["TopicArn"]
    queue = sqs.create_queue(QueueName=f"q-{uuid.uuid4()}")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    for name, value in {"AWS_ENDPOINT_URL": stack.emulator_url, **credentials(stack.aws.access_key)}.items():
        monkeypatch.setenv(name, value)
    payload = _payload(uuid.uuid4(), "u_123", 1)
    notification = Notification(
        uuid.uuid4(), "EntitlementGranted", "u_123", "item1", 1, payload, trace_id=None, attempt_count=0
    )
    settings = {"NOTIFICATION_SENDER": "sns", "NOTIFICATION_SNS_TOPIC_ARN": topic}
    build_sender(load(SenderSettings, settings)).send(notification)
    (message,) = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20)["Messages"]
    assert str(notification.notification_id) in message["Body"]


def _operate(stack: EmbeddedStack, http: Http, route: str, **body: Any) -> dict[str, Any]:
    """Give a command over HTTP, and return it when the worker has ended it."""
    headers = [("Content-Type", "application/json"), ("Idempotency-Key", str(uuid.uuid4()))]
    request = json.dumps({"actor": "e2e", "reason": "repaired", **body})
    accepted = http.send("POST", f"/v1/ops/{route}", headers, request)
    assert accepted.status == 202, accepted.body
    invoke(stack, "run-operator-commands", {"until": "idle", "budget": "10s"})  # the schedule would need a minute

    def ended() -> dict[str, Any] | None:
        found = http.send("GET", f"/v1/ops/commands/{accepted.json['command_id']}").json
        return found if found["status"] in {"DONE", "FAILED"} else None

    command: dict[str, Any] = _wait_for(ended)
    return command


def _sent(http: Http, user: str, count: int) -> list[dict[str, Any]] | None:
    response = http.send("GET", INBOX.replace("{user_id}", user))
    assert_matches_contract("GET", INBOX, response.status, response.headers, response.body)
    notifications: list[dict[str, Any]] = response.json["notifications"]
    is_complete = len(notifications) == count and all(sent["status"] == "SENT" for sent in notifications)
    return notifications if is_complete else None


def _summary(http: Http, user: str, *, revoked: int) -> dict[str, Any] | None:
    response = http.send("GET", SUMMARY.replace("{user_id}", user))
    assert_matches_contract("GET", SUMMARY, response.status, response.headers, response.body)
    summary: dict[str, Any] = response.json
    return summary if summary["revoked"] == revoked else None


def _statuses(tx: psycopg.Connection[Any], user: str) -> list[str]:
    rows = tx.execute(
        "SELECT status FROM outbox_events WHERE aggregate_key = %s ORDER BY aggregate_version", (f"{user}/item1",)
    )
    return [status for (status,) in rows]


def _payload(event_id: uuid.UUID, user: str, version: object) -> dict[str, Any]:
    return {
        "event_id": str(event_id),
        "event_type": "EntitlementGranted",
        "occurred_at": "2026-01-08T07:10:00.000000Z",
        "user_id": user,
        "stock_keeping_unit": "item1",
        "source": "e2e",
        "source_id": "e2e",
        "version": version,
    }


async def _last_event(stack: EmbeddedStack) -> tuple[EntitlementEvent, dict[str, str]]:
    client = await nats.connect(stack.nats_url, inbox_prefix=INBOX_PREFIXES[WORKERS])
    stream = declared_parameters()["EventStream"]
    last = (await client.jetstream().stream_info(stream)).state.last_seq
    message = await client.jetstream().get_msg(stream, last)
    await client.close()
    event = EntitlementEvent()
    event.ParseFromString(message.data or b"")
    return event, dict(message.headers or {})


async def _publish(stack: EmbeddedStack, payload: bytes) -> None:
    client = await nats.connect(stack.nats_url, inbox_prefix=INBOX_PREFIXES[WORKERS])
    await client.jetstream().publish(declared_parameters()["EventSubject"], payload)
    await client.close()


def _wait_for(poll: Callable[[], Any]) -> Any:
    result = wait_for(poll, DELIVERY_TIMEOUT_SECONDS, every=0.1)
    assert result, f"no result within {DELIVERY_TIMEOUT_SECONDS} s"
    return result
