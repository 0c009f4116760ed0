"""N3: a deployment creates or updates streams and consumers, workers only verify them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from nats.js.api import ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from functions.configure_streams.handler import handler
from grantwire.errors import RetryableError
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.settings import NatsSettings
from grantwire.jetstream.topology import TopologySettings, verify_topology
from grantwire.settings import load
from grantwire.wiring.lazy import LazyRuntime
from grantwire.wiring.tasks.configure_streams import ConfigurationRuntime
from grantwire.wiring.workers.bridge_events import BridgeRuntime
from grantwire.wiring.workers.record_advisories import RecorderRuntime
from grantwire.wiring.workers.relay_outbox import RelayRuntime
from infra.local.servers.nats_users import TOPOLOGY
from tests.support.concurrency import run_concurrently
from tests.support.nats_users import READER, as_admin, as_user, configure
from tests.support.servers import newest_postgres
from tests.support.waiting import budget_until, until, until_idle
from tests.support.workers.relay_support import worker_environ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nats.js import JetStreamContext

    from grantwire.wiring.workers.runtime import WorkerRuntime

pytestmark = newest_postgres

RUNTIMES = {"relay": RelayRuntime, "bridge": BridgeRuntime, "recorder": RecorderRuntime}


@pytest.fixture
def unconfigured(database_url: str, nats_url: str) -> dict[str, str]:
    """Environment of a worker whose streams do not exist."""
    return worker_environ(database_url, nats_url)


@contextlib.contextmanager
def jetstream(environ: Mapping[str, str]) -> Iterator[tuple[asyncio.Runner, JetStreamContext]]:
    """Connect as a user without restrictions."""
    connection = NatsConnection(load(NatsSettings, as_admin(environ)))
    with asyncio.Runner() as runner:
        runner.run(connection.connect())
        yield runner, connection.jetstream
        runner.run(connection.close())


def verify(environ: Mapping[str, str]) -> None:
    """Verify the topology with the permissions of the workers."""

    async def connect_and_verify() -> None:
        connection = NatsConnection(load(NatsSettings, environ))
        await connection.connect()
        try:
            await verify_topology(connection, load(TopologySettings, environ))
        finally:
            await connection.close()

    asyncio.run(connect_and_verify())


def change_stream(environ: Mapping[str, str], stream: str, **changes: Any) -> None:
    """Change the configuration of a stream as an operator could."""
    with jetstream(environ) as (runner, context):
        config = runner.run(context.stream_info(stream)).config
        runner.run(context.update_stream(config.evolve(**changes)))


def recreate_consumer(environ: Mapping[str, str], stream: str, name: str, **changes: Any) -> None:
    """Delete a consumer and create it with another configuration."""
    with jetstream(environ) as (runner, context):
        config = runner.run(context.consumer_info(stream, name)).config
        runner.run(context.delete_consumer(stream, name))
        runner.run(context.add_consumer(stream, config.evolve(**changes)))


def test_streams_and_consumers_are_created_once_and_in_order(unconfigured: dict[str, str]) -> None:
    """N3: the advisory stream comes first; a second call changes nothing."""
    events, advisories = unconfigured["ENTITLEMENT_NATS_STREAM"], unconfigured["NOTIFICATION_NATS_ADVISORY_STREAM"]
    assert configure(unconfigured | {"ENTITLEMENT_NATS_READERS": READER}) == {
        "created": [
            f"stream {advisories}",
            f"stream {events}",
            f"consumer bridge of stream {events}",
            f"consumer max-deliveries-recorder of stream {advisories}",
            f"consumer terminated-recorder of stream {advisories}",
            f"consumer {READER} of stream {events}",
        ],
        "updated": [],
    }
    assert configure(unconfigured | {"ENTITLEMENT_NATS_READERS": READER}) == {"created": [], "updated": []}
    with jetstream(unconfigured) as (runner, context):
        stream = runner.run(context.stream_info(events)).config
        assert (stream.subjects, stream.retention) == ([unconfigured["ENTITLEMENT_NATS_SUBJECT"]], "limits")
        assert (stream.duplicate_window, stream.max_age) == (600, 14 * 86400)
        bridge = runner.run(context.consumer_info(events, "bridge")).config
        assert (bridge.ack_wait, bridge.max_deliver, bridge.ack_policy) == (30, 5, "explicit")
        assert runner.run(context.stream_info(advisories)).config.subjects == [
            f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.{events}.bridge" for kind in ("MAX_DELIVERIES", "MSG_TERMINATED")
        ]
    verify(unconfigured)


def test_concurrent_configuration_is_harmless(unconfigured: dict[str, str]) -> None:
    """N3: four deployments at the same time leave each stream and consumer once."""
    run_concurrently(4, lambda _: configure(unconfigured))
    verify(unconfigured)
    with jetstream(unconfigured) as (runner, context):
        for stream, count in (("ENTITLEMENT_NATS_STREAM", 1), ("NOTIFICATION_NATS_ADVISORY_STREAM", 2)):
            assert len(runner.run(context.consumers_info(unconfigured[stream]))) == count


def test_changed_setting_updates_and_keeps_the_choices_of_an_operator(environ: dict[str, str]) -> None:
    """N3: a limit that an operator added is kept, and the result names what was updated."""
    stream = environ["ENTITLEMENT_NATS_STREAM"]
    change_stream(environ, stream, max_bytes=10_000_000)
    changed = environ | {"ENTITLEMENT_NATS_DUPLICATE_WINDOW": "5m", "NOTIFICATION_NATS_ACK_WAIT": "3s"}
    result = configure(changed)
    assert result["created"] == []
    assert result["updated"][:2] == [f"stream {stream}", f"consumer bridge of stream {stream}"]
    with jetstream(environ) as (runner, context):
        after = runner.run(context.stream_info(stream)).config
        assert (after.duplicate_window, after.max_bytes) == (300, 10_000_000)
        assert runner.run(context.consumer_info(stream, "bridge")).config.ack_wait == 3
    verify(changed)


def test_topology_of_an_earlier_version_is_updated(unconfigured: dict[str, str]) -> None:
    """N3: the advisory stream stored the advisories of all consumers of the event stream."""
    events, advisories = unconfigured["ENTITLEMENT_NATS_STREAM"], unconfigured["NOTIFICATION_NATS_ADVISORY_STREAM"]
    kinds = {"MAX_DELIVERIES": "max-deliveries-recorder", "MSG_TERMINATED": "terminated-recorder"}
    subjects = {kind: f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.{events}.>" for kind in kinds}
    with jetstream(unconfigured) as (runner, context):
        runner.run(context.add_stream(StreamConfig(name=advisories, subjects=list(subjects.values()))))
        for kind, durable in kinds.items():
            config = ConsumerConfig(durable_name=durable, filter_subject=subjects[kind], ack_wait=30)
            runner.run(context.add_consumer(advisories, config))
    configure(unconfigured)
    verify(unconfigured)


@pytest.mark.parametrize("worker", RUNTIMES)
def test_worker_waits_for_missing_streams_and_creates_none(
    unconfigured: dict[str, str], worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """N3: it reports an unavailable dependency, and works without a restart when the streams are configured."""
    stream = unconfigured["ENTITLEMENT_NATS_STREAM"]
    with _running(RUNTIMES[worker], unconfigured) as runtime:
        with pytest.raises(RetryableError, match=f"stream {stream}: is missing; .*invoke configure_streams"):
            runtime.run(until_idle())
        with jetstream(unconfigured) as (runner, context):
            assert stream not in [info.config.name for info in runner.run(context.streams_info())]
        is_over = threading.Event()
        waits: list[dict[str, Any]] = []

        def waits_again() -> bool:
            lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
            waits.extend(line for line in lines if line.get("message") == "dependency unavailable, retrying")
            return len(waits) > 1

        thread = threading.Thread(target=lambda: runtime.run(budget_until(is_over.is_set)))
        thread.start()
        until("the worker waits", waits_again)
        configure(unconfigured)
        is_over.set()
        thread.join()
        assert runtime.run(until_idle()) is not None
    assert all("invoke configure_streams" in line["reason"] for line in waits)


DIFFERENCES: dict[str, tuple[Callable[[dict[str, str]], None], str]] = {
    "subject": (
        lambda environ: change_stream(environ, environ["ENTITLEMENT_NATS_STREAM"], subjects=["entitlements.other"]),
        "subject entitlements.[0-9a-f]+ is missing",
    ),
    "duplicate window": (
        lambda environ: change_stream(environ, environ["ENTITLEMENT_NATS_STREAM"], duplicate_window=60),
        "duplicate_window is 60, must be at least 600",
    ),
    "short max_age": (
        lambda environ: change_stream(environ, environ["ENTITLEMENT_NATS_STREAM"], max_age=3600),
        "max_age is 3600 s, must be at least 1.2096e",
    ),
    "no max_age": (
        lambda environ: change_stream(environ, environ["ENTITLEMENT_NATS_STREAM"], max_age=0),
        "max_age must be below",
    ),
    "ack wait": (
        lambda environ: recreate_consumer(environ, environ["ENTITLEMENT_NATS_STREAM"], "bridge", ack_wait=5),
        "ack_wait is 5.0, must be 30.0",
    ),
    "max deliver": (
        lambda environ: recreate_consumer(environ, environ["ENTITLEMENT_NATS_STREAM"], "bridge", max_deliver=-1),
        "max_deliver is -1, must be 5",
    ),
    "filter": (
        lambda environ: recreate_consumer(
            environ, environ["ENTITLEMENT_NATS_STREAM"], "bridge", filter_subject=environ["ENTITLEMENT_NATS_SUBJECT"]
        ),
        "filter_subject is entitlements",
    ),
    "advisory consumer": (
        lambda environ: recreate_consumer(
            environ, environ["NOTIFICATION_NATS_ADVISORY_STREAM"], "terminated-recorder", filter_subject=None
        ),
        "filter_subject is none",
    ),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_difference_that_matters_is_named_and_repaired(environ: dict[str, str], difference: str) -> None:
    """N3: the reason says what differs and what to do; configure_streams repairs it."""
    verify(environ)
    change, reason = DIFFERENCES[difference]
    change(environ)
    with pytest.raises(RetryableError, match=f"{reason}.*; invoke configure_streams$"):
        verify(environ)
    assert configure(environ)["updated"]
    verify(environ)


def test_work_queue_in_memory_is_named(unconfigured: dict[str, str]) -> None:
    """N3: such a stream would delete a terminated message, and lose all messages in a crash."""
    stream, subject = unconfigured["ENTITLEMENT_NATS_STREAM"], unconfigured["ENTITLEMENT_NATS_SUBJECT"]
    with jetstream(unconfigured) as (runner, context):
        config = StreamConfig(
            name=stream, subjects=[subject], retention=RetentionPolicy.WORK_QUEUE, storage=StorageType.MEMORY
        )
        runner.run(context.add_stream(config))
    with pytest.raises(RetryableError):
        configure(unconfigured)
    with pytest.raises(
        RetryableError, match=r"retention is workqueue, must be limits; .*storage is memory, must be file"
    ):
        verify(unconfigured)


def test_choices_of_an_operator_are_no_fault(environ: dict[str, str]) -> None:
    """N3: more subjects, a longer duplicate window and limits do not stop the workers, and more subjects are kept."""
    stream, extra = environ["ENTITLEMENT_NATS_STREAM"], f"entitlements.{time.monotonic_ns()}"
    change_stream(
        environ,
        stream,
        subjects=[environ["ENTITLEMENT_NATS_SUBJECT"], extra],
        duplicate_window=3600,
        max_bytes=10_000_000,
        max_age=20 * 86400,
    )
    verify(environ)
    configure(environ)
    with jetstream(environ) as (runner, context):
        assert extra in (runner.run(context.stream_info(stream)).config.subjects or [])


def test_function_logs_and_returns_what_it_changed(
    unconfigured: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """N3: a deployment shows what was created."""
    environ = as_user(unconfigured, TOPOLOGY)
    monkeypatch.setattr(handler, "_runtime", LazyRuntime(lambda _: ConfigurationRuntime.build(environ)))
    assert len(handler({}, None)["created"]) == 5
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    created = [line["object"] for line in lines if line["message"] == "stream or consumer created"]
    assert f"stream {unconfigured['ENTITLEMENT_NATS_STREAM']}" in created


@contextlib.contextmanager
def _running(kind: type[WorkerRuntime], environ: dict[str, str]) -> Iterator[Any]:
    runtime = kind.build(environ)  # type: ignore[attr-defined]  # every subclass has it
    try:
        yield runtime
    finally:
        runtime.close()


def test_terminated_advisories_can_have_their_own_stream(unconfigured: dict[str, str]) -> None:
    """N2: with the same settings as the other advisories; also if both had one stream before."""
    stream = unconfigured["NOTIFICATION_NATS_ADVISORY_STREAM"]
    changed = {"STREAM": f"{stream}_TERMINATED", "MAX_AGE": "2d"}
    listed = ",".join(f"NOTIFICATION_NATS_TERMINATED_ADVISORY_{name}={value}" for name, value in changed.items())
    configure(unconfigured)
    configure({**unconfigured, "GRANTWIRE_SETTINGS": listed})
    with jetstream(unconfigured) as (runner, context):
        first = runner.run(context.stream_info(stream)).config
        second = runner.run(context.stream_info(f"{stream}_TERMINATED")).config
        consumer = runner.run(context.consumer_info(f"{stream}_TERMINATED", "terminated-recorder")).config
    assert [name.split(".")[4] for name in first.subjects or []] == ["MAX_DELIVERIES"]
    assert [name.split(".")[4] for name in second.subjects or []] == ["MSG_TERMINATED"]
    assert (first.max_age, second.max_age) == (14 * 86400, 2 * 86400)
    assert consumer.filter_subject == (second.subjects or [""])[0]
