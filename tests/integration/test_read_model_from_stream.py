"""P2: the read model is rebuilt from the stream, independently of the bridge and without other effects."""

from __future__ import annotations

import asyncio
import contextlib
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.errors import RetryableError
from grantwire.events.genuine import find_genuine
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.settings import NatsSettings
from grantwire.operations.commands import REBUILD
from grantwire.read_model import from_stream
from grantwire.settings import load
from grantwire.wiring.workers.run_operator_commands import OperatorCommandsRuntime
from tests.support.commands import Operations
from tests.support.concurrency import run_concurrently
from tests.support.dead_letters import budget
from tests.support.module_database import database_url
from tests.support.nats_users import as_admin
from tests.support.plaintext import PLAINTEXT
from tests.support.read_model import (
    DAMAGE,
    Entitlement,
    clear_tables,
    entitlement,
    event_for,
    insert_entitlements,
    read_model_rows,
    record_rows,
)
from tests.support.workers.bridge_stream import Stream, drain, event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nats.js import JetStreamContext

    from infra.local.servers.nats import NatsServer
    from tests.integration.conftest import Rows

__all__ = ["database_url"]

USERS = [f"u{number:02}" for number in range(30)]


@pytest.fixture(autouse=True)
def _clear_tables(rows: Rows) -> None:
    clear_tables(rows)
    rows.execute("DELETE FROM operator_commands")


@pytest.fixture
def entitlements(environ: dict[str, str], stream: Stream, rows: Rows) -> list[Entitlement]:
    """Entitlements in system of record, stream, inbox and read model, each granted and revoked."""
    stream.publish(*(event_for(entitlement(user, version)) for version in (1, 2) for user in USERS))
    insert_entitlements(rows, [entitlement(user, 2) for user in USERS])
    drain(environ)
    assert read_model_rows(rows) == record_rows(rows)
    return record_rows(rows)


def rebuild_from_stream(environ: dict[str, str], **body: Any) -> dict[str, Any]:
    """Rebuild from the stream as the worker does."""
    with Operations(environ) as operations:
        return operations.execute(REBUILD, source="stream", **body)


def bridge_rows(rows: Rows) -> list[dict[str, Any]]:
    """Return the rows that only the bridge may write."""
    return [
        row
        for table in ("processed_events", "notifications")
        for row in rows.execute(f"SELECT *, xmin FROM {table} ORDER BY event_id").fetchall()  # noqa: S608
    ]


@contextmanager
def jetstream(environ: dict[str, str]) -> Iterator[tuple[asyncio.Runner, JetStreamContext]]:
    """Connect to JetStream, to read and change the stream."""
    connection = NatsConnection(load(NatsSettings, as_admin(environ)))
    with asyncio.Runner() as runner:
        runner.run(connection.connect())
        yield runner, connection.jetstream
        runner.run(connection.close())


def consumer_names(environ: dict[str, str]) -> list[str]:
    """Return the names of the stream's consumers."""
    with jetstream(environ) as (runner, context):
        return [item.name for item in runner.run(context.consumers_info(environ["ENTITLEMENT_NATS_STREAM"]))]


def test_empty_read_model_is_restored_without_other_effects(
    environ: dict[str, str], stream: Stream, rows: Rows, entitlements: list[Entitlement]
) -> None:
    """P2: inbox, notifications and the bridge's consumer are not touched, and no consumer is made."""
    rows.execute("DELETE FROM user_entitlements")
    before, delivered = bridge_rows(rows), stream.delivery_count()
    assert rebuild_from_stream(environ) == {
        "selected": 60,
        "done": 30,
        "source": "stream",
        "from_sequence": 1,
        "reached": 60,
        "last_sequence": 60,
        "events": 60,
        "changed": 30,
        "skipped": 0,
        "not_genuine": 0,
        "complete": True,
    }
    assert read_model_rows(rows) == entitlements
    assert (bridge_rows(rows), stream.delivery_count()) == (before, delivered)
    assert consumer_names(environ) == ["bridge"]
    assert rebuild_from_stream(environ)["changed"] == 0


def test_only_missing_and_behind_rows_are_changed(
    environ: dict[str, str], rows: Rows, entitlements: list[Entitlement]
) -> None:
    """P2: rows that are ahead, wrong or extra need a rebuild from the system of record, as the runbook says."""
    for number, damage in enumerate(DAMAGE.values()):
        rows.execute(damage, (USERS[number],))
    assert rebuild_from_stream(environ)["changed"] == 2
    rebuilt = {item.user_id: item for item in read_model_rows(rows)}
    assert [rebuilt[user] for user in USERS[:2]] == entitlements[:2]
    assert all(rebuilt[user] != entitlements[number] for number, user in enumerate(USERS[2:5], start=2))
    assert any(item.stock_keeping_unit == "never granted" for item in read_model_rows(rows))


def test_invalid_messages_are_logged_and_skipped(
    environ: dict[str, str], stream: Stream, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """P2: a message that is not an event, or that the database refuses; the others are projected."""
    good = [entitlement(user, 1) for user in USERS[:4]]
    stream.publish(event_for(good[0]), b"not an event", event_for(good[1]))
    stream.publish(event(user_id="u" * 129), event(version=-1), *map(event_for, good[2:]))
    report = rebuild_from_stream(environ)
    assert (report["events"], report["changed"], report["skipped"], report["complete"]) == (4, 4, 3, True)
    assert read_model_rows(rows) == good
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    reasons = {
        line["stream_seq"]: line["reason"] for line in lines if line.get("message") == "message skipped in rebuild"
    }
    assert reasons.keys() == {2, 4, 5}
    assert reasons[2] == "not an EntitlementEvent"


def test_interrupted_rebuild_continues_where_it_stopped(
    environ: dict[str, str], rows: Rows, entitlements: list[Entitlement], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2, T1: earlier messages are not read again."""
    monkeypatch.setattr(from_stream, "_BATCH_SIZE", 25)
    rows.execute("DELETE FROM user_entitlements")
    reached: list[int] = []

    def stop_after_two(report: dict[str, Any]) -> None:
        reached.append(report["reached"])
        if len(reached) == 2:
            raise MemoryError("the process dies")

    with Operations(environ) as operations, pytest.raises(MemoryError):
        operations.execute(REBUILD, source="stream", on_batch=stop_after_two)
    assert reached == [25, 50]
    assert len(read_model_rows(rows)) == 30
    assert read_model_rows(rows) != entitlements
    rows.execute("UPDATE operator_commands SET lease_until = now() - interval '1 second'")
    with contextlib.closing(OperatorCommandsRuntime.build(environ)) as worker:
        assert worker.run(budget())["batches"] == 1
    (command,) = rows.execute("SELECT result FROM operator_commands").fetchall()
    assert (command["result"]["from_sequence"], command["result"]["events"]) == (1, 60)
    assert command["result"]["complete"]
    assert read_model_rows(rows) == entitlements
    assert consumer_names(environ) == ["bridge"]


def test_rebuild_begins_at_a_message(environ: dict[str, str], rows: Rows, entitlements: list[Entitlement]) -> None:
    """P2: with `from_sequence`, when an operator knows what was skipped."""
    rows.execute("DELETE FROM user_entitlements")
    report = rebuild_from_stream(environ, from_sequence=51)
    assert (report["from_sequence"], report["events"], report["complete"]) == (51, 10, True)
    assert read_model_rows(rows) == entitlements[20:]


def test_rebuild_ends_with_last_message_at_its_start(
    environ: dict[str, str], stream: Stream, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: later events are left to the bridge; otherwise a rebuild during traffic would never end."""
    monkeypatch.setattr(from_stream, "_BATCH_SIZE", 4)
    stream.publish(*(event_for(entitlement(user, 1)) for user in USERS[:6]))

    def publish_more(_report: dict[str, Any]) -> None:
        stream.publish(*(event_for(entitlement(user, 1)) for user in USERS[6:]))

    report = rebuild_from_stream(environ, on_batch=publish_more)
    assert (report["reached"], report["last_sequence"], report["complete"]) == (6, 6, True)
    assert read_model_rows(rows) == [entitlement(user, 1) for user in USERS[:6]]


def test_messages_that_left_the_stream_are_passed_over(
    environ: dict[str, str], stream: Stream, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: the first ones, some in between, and a whole batch."""
    monkeypatch.setattr(from_stream, "_BATCH_SIZE", 4)
    stream.publish(*(event_for(entitlement(user, 1)) for user in USERS))
    name, batches = environ["ENTITLEMENT_NATS_STREAM"], list[int]()
    with jetstream(environ) as (runner, context):
        for sequence in [*range(1, 6), 10, *range(14, 22), 30]:
            runner.run(context.delete_msg(name, sequence))
    report = rebuild_from_stream(environ, on_batch=lambda report: batches.append(report["reached"]))
    assert (report["events"], report["reached"], report["complete"]) == (15, 30, True)
    assert batches[0] == 9  # it begins with the first message that is there
    kept = {number for number in range(30) if number + 1 not in {*range(1, 6), 10, *range(14, 22), 30}}
    assert read_model_rows(rows) == [entitlement(USERS[number], 1) for number in sorted(kept)]


@pytest.mark.parametrize("from_sequence", [1, 5, 1000])
def test_rebuild_of_empty_stream_is_complete(environ: dict[str, str], stream: Stream, from_sequence: int) -> None:
    """P2: nothing was published yet, all messages have left the stream, or from_sequence is past its end."""
    assert rebuild_from_stream(environ, from_sequence=from_sequence)["complete"]
    stream.publish(*(event_for(entitlement(user, 1)) for user in USERS[:8]))
    with jetstream(environ) as (runner, context):
        runner.run(context.purge_stream(environ["ENTITLEMENT_NATS_STREAM"]))
    report = rebuild_from_stream(environ, from_sequence=from_sequence)
    assert (report["events"], report["complete"]) == (0, True)


def test_concurrent_rebuilds_end_the_same(environ: dict[str, str], rows: Rows, entitlements: list[Entitlement]) -> None:
    """P2: each reads all events."""
    rows.execute("DELETE FROM user_entitlements")
    reports = run_concurrently(2, lambda _: rebuild_from_stream(environ))
    assert [report["events"] for report in reports] == [60, 60]
    assert sum(report["changed"] for report in reports) == 30
    assert read_model_rows(rows) == entitlements


def test_rebuild_waits_while_nats_is_unavailable(
    database_url: str, nats_server: NatsServer, environ: dict[str, str], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2, T1: NATS is killed after a batch; the command says why it waits, and continues when NATS is back."""
    monkeypatch.setattr(from_stream, "_BATCH_SIZE", 10)
    environ |= {**PLAINTEXT, "DATABASE_URL": database_url, "NATS_URL": nats_server.url, "NATS_CONNECT_TIMEOUT": "200ms"}
    with Stream(environ) as stream:
        stream.publish(*(event_for(entitlement(user, 1)) for user in USERS))
    with Operations(environ) as operations, pytest.raises(RetryableError, match="NATS"):
        operations.execute(REBUILD, source="stream", on_batch=lambda _: nats_server.kill())
    assert len(read_model_rows(rows)) == 10
    rows.execute("UPDATE operator_commands SET lease_until = now() - interval '1 second'")
    with contextlib.closing(OperatorCommandsRuntime.build(environ)) as worker:
        worker.run(budget())
        (waiting,) = rows.execute("SELECT status, last_error FROM operator_commands").fetchall()
        assert (waiting["status"], waiting["last_error"][:19]) == ("RUNNING", "NATS is unreachable")
        nats_server.start()
        rows.execute("UPDATE operator_commands SET next_run_at = now()")
        assert worker.run(budget())["commands_done"] == 1
    assert read_model_rows(rows) == [entitlement(user, 1) for user in USERS]


def test_lost_connection_rolls_back_one_batch(
    database_url: str, environ: dict[str, str], stream: Stream, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: the connection is lost after a batch; earlier batches stay, and the next call opens a new one."""
    monkeypatch.setattr(from_stream, "_BATCH_SIZE", 10)
    stream.publish(*(event_for(entitlement(user, 1)) for user in USERS))

    def end_sessions() -> None:
        with psycopg.connect(database_url, autocommit=True) as control:
            control.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE application_name = 'grantwire-commands' AND datname = current_database()"
            )

    original = find_genuine

    def lose_connection(tx: Any, *arguments: Any) -> Any:
        end_sessions()
        return original(tx, *arguments)

    with Operations(environ) as operations, pytest.raises(RetryableError):
        operations.execute(
            REBUILD,
            source="stream",
            on_batch=lambda _: monkeypatch.setattr(from_stream, "find_genuine", lose_connection),
        )
    assert len(read_model_rows(rows)) == 10
    monkeypatch.setattr(from_stream, "find_genuine", original)
    assert rebuild_from_stream(environ)["complete"]
    assert read_model_rows(rows) == [entitlement(user, 1) for user in USERS]


def test_stream_that_disappears_is_an_error(
    environ: dict[str, str], stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: its messages are not reported as read."""
    monkeypatch.setattr(from_stream, "_BATCH_SIZE", 4)
    stream.publish(*(event_for(entitlement(user, 1)) for user in USERS))

    def delete(_report: dict[str, Any]) -> None:
        with jetstream(environ) as (runner, context):
            runner.run(context.delete_stream(environ["ENTITLEMENT_NATS_STREAM"]))

    with pytest.raises(RetryableError, match=r"stream not found"):
        rebuild_from_stream(environ, on_batch=delete)


@pytest.mark.usefixtures("stream")
def test_missing_stream_is_an_error(environ: dict[str, str]) -> None:
    """P2: a wrong name must not look like an empty stream."""
    with pytest.raises(RetryableError, match="stream not found"):
        rebuild_from_stream(environ | {"ENTITLEMENT_NATS_STREAM": "NOWHERE"})
