"""G2: the NATS users of a deployment, with the permission lists that docs/deploy.md prints.

That the lists are sufficient is proved here with the exact names, and by every other integration test with wildcards
instead of names. What must be refused is tried here, for each user; an unrestricted user can do each of it.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import nats.errors
import pytest
from nats.aio.client import Client

from grantwire.errors import RetryableError
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.publisher import Publisher
from grantwire.jetstream.settings import NatsSettings
from grantwire.operations.commands import REBUILD
from grantwire.settings import load
from grantwire_cli import nats_events
from infra.local.servers.nats_users import FAULTS, TOPOLOGY, WORKERS, inbox_prefix, map_subject
from tests.support.audit import audit_messages, audit_payloads
from tests.support.commands import Operations
from tests.support.dead_letters import Pipeline, event_bytes, event_headers
from tests.support.nats_deployment import API, NAMES, SILENCE_SECONDS, deployment, open_session, server
from tests.support.nats_users import ADMIN, READER, NatsWithUsers
from tests.support.servers import newest_postgres
from tests.support.waiting import WAIT_SECONDS
from tests.support.workers.relay_support import drain, enqueue, payload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.conftest import Rows

__all__ = ["deployment", "server"]


@newest_postgres
def test_all_functions_work_with_the_permissions_of_the_workers(deployment: dict[str, str], rows: Rows) -> None:
    """G2: relay, bridge, recorder, redrive and a rebuild from the stream, on the names of a deployment."""
    audit_payloads(rows, [payload(enqueue(rows, "u_1/item1", 1), 1)])
    assert drain(deployment)["published"] == 1
    with Pipeline(deployment) as pipeline:
        assert pipeline.run_bridge()["recorded"] == 1
        event_id = uuid.uuid4()
        message = event_bytes(event_id, "u_2")
        pipeline.publish(message, event_headers(event_id), genuine=False)
        assert pipeline.run_bridge()["terminated"] == 1
        pipeline.wait_for_advisories(1)
        assert pipeline.run_recorder()["recorded"] == 1
        audit_messages(rows, [message])  # what can never succeed is not redriven (W8)
        assert pipeline.execute(action="redrive", kind="nats", all=True)["done"] == 1
    with Operations(deployment) as operations:
        report = operations.execute(REBUILD, source="stream")
    assert (report["complete"], report["events"]) == (True, 3)


@newest_postgres
def test_reader_consumes_and_acknowledges_through_its_consumer(
    deployment: dict[str, str], rows: Rows, server: NatsWithUsers
) -> None:
    """G2, G10: with a plain nats-py client that knows its stream and consumer, several messages with one request."""
    for version in (1, 2, 3):
        enqueue(rows, "u_1/item1", version)
    drain(deployment)

    async def read() -> int:
        async with open_session(server, READER) as session:
            consumer = await session.client.jetstream().pull_subscribe_bind(READER, NAMES.stream)
            for message in await consumer.fetch(3, timeout=WAIT_SECONDS):
                await message.ack_sync(timeout=WAIT_SECONDS)
            info = await session.client.jetstream().consumer_info(NAMES.stream, READER)
            assert session.denied == []
            return int(info.num_ack_pending or 0) + int(info.num_pending or 0)

    assert asyncio.run(read()) == 0


@newest_postgres
def test_command_reads_and_acknowledges_as_a_reader(
    deployment: dict[str, str], rows: Rows, server: NatsWithUsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10: `grantwire events tail --nats`; what it has yielded is not delivered again."""
    monkeypatch.setattr(nats_events, "FETCH_SECONDS", 0.5)
    for version in (1, 2):
        enqueue(rows, "u_1/item1", version)
    drain(deployment)
    url = server.url_for(READER)
    assert [event["version"] for event in nats_events.read_events(url, stream=NAMES.stream, limit=2)] == [1, 2]
    assert list(nats_events.read_events(url, stream=NAMES.stream, follow=False)) == []


@newest_postgres
def test_fault_user_deletes_a_message_and_pauses_the_bridge(
    deployment: dict[str, str], rows: Rows, server: NatsWithUsers
) -> None:
    """G10: what `make fault` does, from an account of its own."""
    enqueue(rows, "u_1/item1", 1)
    drain(deployment)

    async def break_stream() -> tuple[int, bool]:
        async with open_session(server, FAULTS) as session, open_session(server, ADMIN) as admin:
            jetstream = session.client.jetstream()
            await jetstream.delete_msg(NAMES.stream, 1)
            await jetstream.pause_consumer(NAMES.stream, NAMES.durable, "2099-01-01T00:00:00Z")
            stream = await admin.client.jetstream().stream_info(NAMES.stream)
            consumer = await admin.client.jetstream().consumer_info(NAMES.stream, NAMES.durable)
            assert session.denied == []
            return stream.state.messages, bool(consumer.paused)

    assert asyncio.run(break_stream()) == (0, True)


def _consumer(name: str, **config: Any) -> dict[str, Any]:
    return {"stream_name": NAMES.stream, "config": {"name": name, "ack_policy": "explicit", **config}}


STREAM_CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "delete": (f"{API}.STREAM.DELETE.{NAMES.stream}", {}),
    "delete advisories": (f"{API}.STREAM.DELETE.{NAMES.advisory_stream}", {}),
    "purge": (f"{API}.STREAM.PURGE.{NAMES.stream}", {}),
    "delete a message": (f"{API}.STREAM.MSG.DELETE.{NAMES.stream}", {"seq": 1}),
    "delete the bridge's consumer": (f"{API}.CONSUMER.DELETE.{NAMES.stream}.{NAMES.durable}", {}),
    "delete a reader's consumer": (f"{API}.CONSUMER.DELETE.{NAMES.stream}.{READER}", {}),
}
WORKER_CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "update": (
        f"{API}.STREAM.UPDATE.{NAMES.stream}",
        {"name": NAMES.stream, "subjects": [NAMES.subject], "max_msgs": 1000},
    ),
    "create": (f"{API}.STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["other"]}),
    "another consumer": (f"{API}.CONSUMER.CREATE.{NAMES.stream}.other", _consumer("other")),
    "an unnamed consumer": (
        f"{API}.CONSUMER.CREATE.{NAMES.stream}",
        {"stream_name": NAMES.stream, "config": {"ack_policy": "none"}},
    ),
    "update the bridge's consumer": (
        f"{API}.CONSUMER.CREATE.{NAMES.stream}.{NAMES.durable}",
        _consumer(NAMES.durable, durable_name=NAMES.durable, max_deliver=1),
    ),
    "list streams": (f"{API}.STREAM.NAMES", {}),
    "pause the bridge": (
        f"{API}.CONSUMER.PAUSE.{NAMES.stream}.{NAMES.durable}",
        {"pause_until": "2099-01-01T00:00:00Z"},
    ),
}
READER_CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "read the bridge's messages": (
        f"{API}.CONSUMER.MSG.NEXT.{NAMES.stream}.{NAMES.durable}",
        {"batch": 1, "no_wait": True},
    ),
    "read a message by its sequence": (f"{API}.STREAM.MSG.GET.{NAMES.stream}", {"seq": 1}),
    "see the bridge's consumer": (f"{API}.CONSUMER.INFO.{NAMES.stream}.{NAMES.durable}", {}),
    "see the stream": (f"{API}.STREAM.INFO.{NAMES.stream}", {}),
}
DENIED_REQUESTS = {
    WORKERS: [*STREAM_CHANGES, *WORKER_CHANGES],
    TOPOLOGY: [*STREAM_CHANGES],
    READER: [*STREAM_CHANGES, *WORKER_CHANGES, *READER_CHANGES],
}
REQUESTS = STREAM_CHANGES | WORKER_CHANGES | READER_CHANGES


@newest_postgres
@pytest.mark.parametrize("user", DENIED_REQUESTS)
def test_request_is_denied(deployment: dict[str, str], server: NatsWithUsers, user: str) -> None:  # noqa: ARG001
    """G2: the server names the denied subject and does not respond."""
    requests = [REQUESTS[name] for name in DENIED_REQUESTS[user]]

    async def attempt() -> tuple[list[Any], str]:
        async with open_session(server, user) as session:
            sent = [session.request(subject, body, SILENCE_SECONDS) for subject, body in requests]
            responses = await asyncio.gather(*sent, return_exceptions=True)
            return responses, "\n".join(session.denied).lower()

    responses, denied = asyncio.run(attempt())
    assert [response for response in responses if not isinstance(response, TimeoutError)] == []
    subjects = {subject for subject, _ in requests}
    named = {subject: f'for publish to "{map_subject(subject).lower()}"' for subject in subjects}
    assert {subject for subject in subjects if named[subject] in denied} == subjects


@newest_postgres
def test_unrestricted_user_can_send_every_denied_request(deployment: dict[str, str], server: NatsWithUsers) -> None:
    """G2: so each request above is valid, and only the permission refuses it."""

    async def publish_and_request() -> None:
        connection = NatsConnection(load(NatsSettings, deployment))
        await connection.connect()
        for _ in range(2):
            event_id = uuid.uuid4()
            await Publisher(connection).publish(NAMES.subject, event_bytes(event_id), event_headers(event_id))
        await connection.close()
        # Reading comes first, and deleting last.
        async with open_session(server, ADMIN) as session:
            for name in [*READER_CHANGES, *WORKER_CHANGES, *reversed(STREAM_CHANGES)]:
                subject, body = REQUESTS[name]
                if name != "read the bridge's messages":
                    await session.request(subject, body)
            assert session.denied == []

    asyncio.run(publish_and_request())


PUBLISHES = [
    (TOPOLOGY, NAMES.subject),
    (READER, NAMES.subject),
    *(
        (user, f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{NAMES.stream}.{NAMES.durable}")
        for user in (WORKERS, READER)
    ),
    (READER, f"$JS.ACK.{NAMES.stream}.{NAMES.durable}.1.1.1.1.0"),
    (READER, f"{inbox_prefix(WORKERS)}.forged"),
    (TOPOLOGY, f"{inbox_prefix(WORKERS)}.forged"),
    (WORKERS, "anything"),
]


@newest_postgres
@pytest.mark.parametrize(("user", "subject"), PUBLISHES)
def test_publish_is_denied(deployment: dict[str, str], server: NatsWithUsers, user: str, subject: str) -> None:  # noqa: ARG001
    """G2: a reader cannot publish an event, and no user can forge an advisory, an acknowledgement or a response."""

    async def attempt(user: str) -> list[str]:
        async with open_session(server, user) as session:
            await session.client.publish(subject, b"x")
            await session.client.flush()
            await asyncio.sleep(0.02)  # nats-py calls the error callback in a task
            return list(session.denied)

    assert [text for text in asyncio.run(attempt(user)) if map_subject(subject).lower() in text.lower()]
    assert asyncio.run(attempt(ADMIN)) == []


STREAM_ACTIONS = (
    "CREATE",
    "UPDATE",
    "INFO",
    "DELETE",
    "PURGE",
    "MSG.GET",
    "MSG.DELETE",
    "SNAPSHOT",
    "RESTORE",
    "LEADER.STEPDOWN",
    "PEER.REMOVE",
)
CONSUMER_ACTIONS = (
    "CREATE",
    "DURABLE.CREATE",
    "INFO",
    "DELETE",
    "PAUSE",
    "RESET",
    "UNPIN",
    "MSG.NEXT",
    "LEADER.STEPDOWN",
)
BRIDGE = (NAMES.stream, NAMES.durable)
RECORDERS = [(NAMES.advisory_stream, name) for name in NAMES.recorder_durables]
OUTSIDE = (NAMES.stream, READER)
ADVISORY = f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{NAMES.stream}.{NAMES.durable}"


def _consumer_subjects(*consumers: tuple[str, str], actions: tuple[str, ...] = CONSUMER_ACTIONS) -> set[str]:
    return {f"{API}.CONSUMER.{action}.{stream}.{name}" for stream, name in consumers for action in actions}


def _stream_subjects(*streams: str, actions: tuple[str, ...] = STREAM_ACTIONS) -> set[str]:
    return {f"{API}.STREAM.{action}.{stream}" for stream in streams for action in actions}


def _ack_subjects(*consumers: tuple[str, str]) -> set[str]:
    return {f"$JS.ACK.{stream}.{name}.1.1.1.1.0" for stream, name in consumers}


ALL_CONSUMERS = [BRIDGE, *RECORDERS, OUTSIDE, (NAMES.stream, "other"), ("OTHER", "other")]
ALL_SUBJECTS = {
    NAMES.subject,
    ADVISORY,
    "anything",
    "$SYS.REQ.SERVER.PING",
    *(f"{API}.{request}" for request in ("INFO", "STREAM.NAMES", "STREAM.LIST", "META.LEADER.STEPDOWN")),
    *(f"{API}.CONSUMER.{request}.{NAMES.stream}" for request in ("CREATE", "NAMES", "LIST")),
    *(f"{API}.DIRECT.GET.{stream}" for stream in (NAMES.stream, NAMES.advisory_stream)),
    *(f"{inbox_prefix(user)}.forged" for user in (WORKERS, TOPOLOGY, READER)),
    *(f"{API}.CONSUMER.CREATE.{stream}.{name}.{ADVISORY}" for stream, name in ALL_CONSUMERS),
    *_stream_subjects(NAMES.stream, NAMES.advisory_stream, "OTHER"),
    *_consumer_subjects(*ALL_CONSUMERS),
    *_ack_subjects(*ALL_CONSUMERS),
}
# What each user needs (G2), written independently of the lists in nats_users.py.
ALLOWED_SUBJECTS = {
    WORKERS: {
        NAMES.subject,
        *_stream_subjects(NAMES.stream, NAMES.advisory_stream, actions=("INFO",)),
        *_stream_subjects(NAMES.stream, actions=("MSG.GET",)),
        *_consumer_subjects(BRIDGE, *RECORDERS, actions=("INFO", "MSG.NEXT")),
        *_ack_subjects(BRIDGE, *RECORDERS),
    },
    TOPOLOGY: {
        *_stream_subjects(NAMES.stream, NAMES.advisory_stream, actions=("INFO", "CREATE", "UPDATE")),
        *_consumer_subjects(BRIDGE, OUTSIDE, actions=("INFO", "CREATE")),
        *_consumer_subjects(*RECORDERS, actions=("INFO",)),
        f"{API}.CONSUMER.CREATE.{NAMES.advisory_stream}.{NAMES.recorder_durables[1]}.{ADVISORY}",
    },
    READER: {*_consumer_subjects(OUTSIDE, actions=("INFO", "MSG.NEXT")), *_ack_subjects(OUTSIDE)},
}


@pytest.mark.parametrize("user", ALLOWED_SUBJECTS)
def test_user_publishes_to_exactly_the_allowed_subjects(server: NatsWithUsers, user: str) -> None:
    """G2: of all requests of JetStream on every stream and consumer, and of all other kinds of subjects."""

    async def attempt(user: str) -> set[str]:
        """Return the subjects that the server denies. It needs no stream to decide."""
        async with open_session(server, user) as session:
            for subject in sorted(ALL_SUBJECTS):
                await session.client.publish(subject)
            await session.client.flush()
            await asyncio.sleep(0.05)  # nats-py calls the error callback in a task
            text = "\n".join(session.denied).lower()
            return {subject for subject in ALL_SUBJECTS if f'publish to "{map_subject(subject).lower()}"' in text}

    assert ALL_SUBJECTS - asyncio.run(attempt(user)) == ALLOWED_SUBJECTS[user]


USERS = (WORKERS, TOPOLOGY, READER)


@pytest.mark.parametrize("user", USERS)
def test_subscription_is_denied(server: NatsWithUsers, user: str) -> None:
    """G2: a user receives only what arrives in its own inbox."""
    subjects = {NAMES.subject, ">", "*", "_INBOX.>", "$JS.>", "$JS.ACK.>", ADVISORY}
    subjects |= {f"{inbox_prefix(other)}.>" for other in USERS if other != user}

    async def attempt(user: str) -> set[str]:
        """Return the subjects that the server denies."""
        async with open_session(server, user) as session:
            for subject in subjects:
                await session.subscribe(subject)
            text = "\n".join(session.denied).lower()
            return {subject for subject in subjects if f'for subscription to "{subject.lower()}"' in text}

    assert asyncio.run(attempt(user)) == subjects
    assert asyncio.run(attempt(ADMIN)) == set()


def test_client_without_password_is_refused(server: NatsWithUsers) -> None:
    """G2: on the local stack too."""

    async def connect() -> None:
        client = Client()
        try:
            await client.connect(f"nats://127.0.0.1:{server.port}", allow_reconnect=False, error_cb=_ignore)
        finally:
            await client.close()

    with pytest.raises(nats.errors.Error):
        asyncio.run(connect())


async def _ignore(_error: Exception) -> None:
    pass


ACTIONS: dict[str, Callable[[NatsConnection], Awaitable[object]]] = {
    "read a stream": lambda connection: connection.sequences("OTHER"),
    "read a message": lambda connection: connection.get_message("OTHER", 1),
    "publish": lambda connection: Publisher(connection).publish("other", b"x", {}),
}


@newest_postgres
@pytest.mark.parametrize("action", ACTIONS)
def test_error_names_the_denied_permission(deployment: dict[str, str], action: str) -> None:
    """G2: the server does not respond to a denied request, so a bare timeout would hide the cause."""

    async def attempt() -> None:
        connection = NatsConnection(load(NatsSettings, deployment | {"NATS_PUBLISH_TIMEOUT": "200ms"}))
        await connection.connect()
        try:
            with pytest.raises(RetryableError, match=r"NATS denied a permission: .*(OTHER|other)"):
                await ACTIONS[action](connection)
        finally:
            await connection.close()

    asyncio.run(attempt())
