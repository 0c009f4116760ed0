"""P2: the read model is brought up by from_stream the stream, beside the bridge and without a second effect."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.errors import RetryableError
from grantwire.jetstream import pull_consumer as pulling
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.settings import NatsSettings
from grantwire.read_model import from_stream
from grantwire.read_model.commands import RebuildCommand
from grantwire.runtime.rebuild import RebuildRuntime
from grantwire.settings import load
from grantwire.workers.budget import Budget
from tests.support.concurrency import at_once
from tests.support.plaintext import PLAINTEXT
from tests.support.read_model import DAMAGE, Right, clear, event_of, keep, model, record, right
from tests.support.workers.bridge_stream import Stream, drain, event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nats.js import JetStreamContext

    from grantwire.read_model.from_stream import StreamRebuildReport
    from infra.local.servers.nats import NatsServer
    from tests.integration.conftest import Rows
    from tests.support.servers import Databases

USERS = [f"u{number:02}" for number in range(30)]


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One database for all; each test begins with empty tables."""
    url = databases.migrated()
    yield url
    databases.drop(url)


@pytest.fixture(autouse=True)
def _empty(rows: Rows) -> None:
    clear(rows)


@pytest.fixture
def rights(environ: dict[str, str], stream: Stream, rows: Rows) -> list[Right]:
    """Rights in record, stream, inbox and read model: each granted and revoked."""
    stream.publish(*(event_of(right(user, version)) for version in (1, 2) for user in USERS))
    keep(rows, [right(user, 2) for user in USERS])
    drain(environ)
    assert model(rows) == record(rows)
    return record(rows)


@contextmanager
def rebuilding(environ: dict[str, str]) -> Iterator[RebuildRuntime]:
    """A rebuild's runtime."""
    runtime = RebuildRuntime.build(environ)
    try:
        yield runtime
    finally:
        runtime.close()


def replay(environ: dict[str, str], **fields: Any) -> dict[str, Any]:
    """StreamRebuild as the function does."""
    with rebuilding(environ) as runtime:
        return runtime.execute(RebuildCommand.parse({"source": "stream", **fields})).as_dict()


def effects(rows: Rows) -> list[dict[str, Any]]:
    """What only the bridge may write."""
    return [
        row
        for table in ("processed_events", "notifications")
        for row in rows.execute(f"SELECT *, xmin FROM {table} ORDER BY event_id").fetchall()  # noqa: S608
    ]


@contextmanager
def jetstream(environ: dict[str, str]) -> Iterator[tuple[asyncio.Runner, JetStreamContext]]:
    """JetStream, to look and to meddle."""
    broker = NatsConnection(load(NatsSettings, environ))
    with asyncio.Runner() as runner:
        runner.run(broker.connect())
        yield runner, broker.jetstream
        runner.run(broker.close())


def consumers(environ: dict[str, str]) -> list[str]:
    """Who reads the stream."""
    with jetstream(environ) as (runner, context):
        return [one.name for one in runner.run(context.consumers_info(environ["ENTITLEMENT_NATS_STREAM"]))]


def test_an_emptied_read_model_comes_back_and_nothing_else_happens(
    environ: dict[str, str], stream: Stream, rows: Rows, rights: list[Right]
) -> None:
    """P2: neither inbox nor notifications nor the bridge's consumer notice, and no consumer is left behind."""
    rows.execute("DELETE FROM user_entitlements")
    before, delivered = effects(rows), stream.deliveries()
    assert replay(environ) == {
        "source": "stream",
        "dry_run": False,
        "from_sequence": 1,
        "reached": 60,
        "last_sequence": 60,
        "events": 60,
        "changed": 30,
        "skipped": 0,
        "complete": True,
    }
    assert model(rows) == rights
    assert (effects(rows), stream.deliveries()) == (before, delivered)
    assert consumers(environ) == ["bridge"]
    assert replay(environ)["changed"] == 0


def test_it_brings_up_what_is_missing_or_behind_and_leaves_the_rest(
    environ: dict[str, str], rows: Rows, rights: list[Right]
) -> None:
    """P2: what is ahead, wrong or without a right is for a rebuild from the record, as the runbook says."""
    for number, damage in enumerate(DAMAGE.values()):
        rows.execute(damage, (USERS[number],))
    assert replay(environ)["changed"] == 2
    found = {one.user_id: one for one in model(rows)}
    assert [found[user] for user in USERS[:2]] == rights[:2]
    assert all(found[user] != rights[number] for number, user in enumerate(USERS[2:5], start=2))
    assert any(one.stock_keeping_unit == "never granted" for one in model(rows))


def test_a_dry_run_reads_everything_and_changes_nothing(environ: dict[str, str], rows: Rows, stream: Stream) -> None:
    """P2: it tells how much there is, and what cannot be read."""
    stream.publish(event_of(right("u", 1)), b"poison")
    report = replay(environ, dry_run=True)
    assert (report["events"], report["skipped"], report["changed"], report["complete"]) == (1, 1, 0, True)
    assert model(rows) == []


def test_what_cannot_be_replayed_is_told_and_left_out(
    environ: dict[str, str], stream: Stream, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """P2: no event, or one that the database refuses; its neighbours are replayed."""
    good = [right(user, 1) for user in USERS[:4]]
    stream.publish(event_of(good[0]), b"poison", event_of(good[1]))
    stream.publish(event(user_id="u" * 129), event(version=-1), *map(event_of, good[2:]))
    report = replay(environ)
    assert (report["events"], report["changed"], report["skipped"], report["complete"]) == (4, 4, 3, True)
    assert model(rows) == good
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = {line["stream_seq"]: line["reason"] for line in lines if line.get("message") == "message skipped in rebuild"}
    assert told.keys() == {2, 4, 5}
    assert told[2] == "not an EntitlementEvent"


def test_a_replay_that_runs_out_of_time_goes_on_where_it_ended(
    environ: dict[str, str], rows: Rows, rights: list[Right], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: it says how far it came; what is before the next beginning is not read again."""
    monkeypatch.setattr(from_stream, "_BATCH", 25)
    rows.execute("DELETE FROM user_entitlements")
    seen: list[int] = []

    def time_for(batches: int) -> Budget:
        return Budget(1.0, clock=lambda: 2.0 if len(seen) >= batches else 0.0)

    with rebuilding(environ) as runtime:
        first = runtime.runner.run(
            runtime.stream_rebuild.run(time_for(2), on_batch=lambda report: seen.append(report.reached))
        )
    assert seen == [25, 50]
    assert (first.complete, first.as_dict()["continue_from"]) == (False, 51)
    assert len(model(rows)) == 30
    assert model(rows) != rights
    rest = replay(environ, from_sequence=51)
    assert (rest["from_sequence"], rest["events"], rest["complete"]) == (51, 10, True)
    assert "continue_from" not in rest
    assert model(rows) == rights
    assert consumers(environ) == ["bridge"]


def test_no_time_at_all_is_a_beginning_too(environ: dict[str, str], stream: Stream) -> None:
    """P2: nothing is read, and the report says from where."""
    stream.publish(event_of(right("u", 1)))
    report = replay(environ, budget="0s")
    assert (report["reached"], report["complete"], report["continue_from"]) == (0, False, 1)


def test_it_ends_with_what_was_there_at_the_beginning(
    environ: dict[str, str], stream: Stream, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: later events are the bridge's, or a replay beside a busy relay would never end."""
    monkeypatch.setattr(from_stream, "_BATCH", 4)
    stream.publish(*(event_of(right(user, 1)) for user in USERS[:6]))

    def publish_more(_report: StreamRebuildReport) -> None:
        with ThreadPoolExecutor(1) as elsewhere:  # this thread's loop is busy with the replay
            elsewhere.submit(stream.publish, *(event_of(right(user, 1)) for user in USERS[6:])).result()

    with rebuilding(environ) as runtime:
        report = runtime.execute(RebuildCommand("stream"), on_batch=publish_more).as_dict()
    assert (report["reached"], report["last_sequence"], report["complete"]) == (6, 6, True)
    assert model(rows) == [right(user, 1) for user in USERS[:6]]


@pytest.mark.parametrize("from_sequence", [1, 5, 1000])
def test_an_empty_stream_is_complete_at_once(environ: dict[str, str], stream: Stream, from_sequence: int) -> None:
    """P2: nothing was published yet, everything has left the stream, or all that was asked for is behind its end."""
    assert replay(environ, from_sequence=from_sequence)["complete"]
    stream.publish(*(event_of(right(user, 1)) for user in USERS[:8]))
    with jetstream(environ) as (runner, context):
        runner.run(context.purge_stream(environ["ENTITLEMENT_NATS_STREAM"]))
    report = replay(environ, from_sequence=from_sequence)
    assert (report["events"], report["complete"]) == (0, True)


def test_two_replays_at_once_end_the_same(environ: dict[str, str], rows: Rows, rights: list[Right]) -> None:
    """P2: they share the work as it comes, each with a consumer of its own."""
    rows.execute("DELETE FROM user_entitlements")
    reports = at_once(2, lambda _: replay(environ))
    assert [report["events"] for report in reports] == [60, 60]
    assert sum(report["changed"] for report in reports) == 30
    assert model(rows) == rights


def test_a_server_that_fails_in_the_middle_is_told_with_where_to_go_on(
    database_url: str, nats_server: NatsServer, environ: dict[str, str], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: NATS is killed after a batch; what was replayed stays, and the rest is replayed when it is back."""
    monkeypatch.setattr(from_stream, "_BATCH", 10)
    monkeypatch.setattr(pulling, "_GRACE_SECONDS", 0.3)  # how long a silent server is waited for
    environ |= {**PLAINTEXT, "DATABASE_URL": database_url, "NATS_URL": nats_server.url}
    with Stream(environ) as stream:
        stream.publish(*(event_of(right(user, 1)) for user in USERS))
    with rebuilding(environ) as runtime:
        with pytest.raises(RetryableError, match=r"go on with from_sequence 11$"):
            runtime.execute(RebuildCommand("stream"), on_batch=lambda _: nats_server.kill())
        assert len(model(rows)) == 10
        nats_server.start()
        rest = runtime.execute(RebuildCommand("stream", from_sequence=11)).as_dict()
    assert (rest["events"], rest["complete"]) == (20, True)
    assert model(rows) == [right(user, 1) for user in USERS]


def test_a_database_that_fails_in_the_middle_is_told_with_where_to_go_on(
    database_url: str, environ: dict[str, str], stream: Stream, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: the connection is lost after a batch; the next call makes a new one."""
    monkeypatch.setattr(from_stream, "_BATCH", 10)
    stream.publish(*(event_of(right(user, 1)) for user in USERS))

    def cut(_report: StreamRebuildReport) -> None:
        with psycopg.connect(database_url, autocommit=True) as control:
            control.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE application_name = 'grantwire-rebuild' AND datname = current_database()"
            )

    with rebuilding(environ) as runtime:
        with pytest.raises(RetryableError, match=r"go on with from_sequence 11$"):
            runtime.execute(RebuildCommand("stream"), on_batch=cut)
        assert runtime.execute(RebuildCommand("stream", from_sequence=11)).complete
    assert model(rows) == [right(user, 1) for user in USERS]


@pytest.mark.usefixtures("stream")
def test_a_stream_that_does_not_exist_is_an_error(environ: dict[str, str]) -> None:
    """P2: a wrong name must not look like an empty stream."""
    with pytest.raises(RetryableError, match="stream not found"):
        replay(environ | {"ENTITLEMENT_NATS_STREAM": "NOWHERE"})
