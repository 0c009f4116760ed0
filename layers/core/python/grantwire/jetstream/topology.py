"""Streams and consumers: their settings, and one function that creates or updates them (N2, N3)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import BadRequestError as JetStreamBadRequestError
from nats.js.errors import NotFoundError as JetStreamNotFoundError

from grantwire.jetstream.errors import wrap_exceptions
from grantwire.jetstream.settings import EVENT_CONSUMER_PROPERTIES, EVENT_STREAM_PROPERTIES
from grantwire.settings import duration, group, integer, setting, text, tuning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nats.js import JetStreamContext

    from grantwire.jetstream.connection import NatsConnection

ADVISORY_SUBJECTS = {
    "MAX_DELIVERIES": "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.>",
    "MSG_TERMINATED": "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{stream}.>",
}


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The event stream, which the relay publishes to."""

    subject: str = setting("ENTITLEMENT_NATS_SUBJECT", text)
    stream: str = setting("ENTITLEMENT_NATS_STREAM", text)
    duplicate_window: timedelta = setting(
        "ENTITLEMENT_NATS_DUPLICATE_WINDOW", duration(low="1s", high="24h"), default="10m"
    )
    max_age: timedelta = setting("ENTITLEMENT_NATS_MAX_AGE", duration(low="1m"), default="14d")
    replicas: int = setting("ENTITLEMENT_NATS_REPLICAS", integer(low=1, high=5), default="1")

    def problems(self) -> Iterator[str]:
        """Yield contradictions: JetStream forgets the id of a message together with the message."""
        if self.duplicate_window > self.max_age:
            yield "ENTITLEMENT_NATS_DUPLICATE_WINDOW must not exceed ENTITLEMENT_NATS_MAX_AGE"


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The bridge's consumer of the event stream."""

    stream: str = setting("NOTIFICATION_NATS_STREAM", text)
    durable: str = setting("NOTIFICATION_NATS_DURABLE", text)
    ack_wait: timedelta = setting("NOTIFICATION_NATS_ACK_WAIT", duration(low="100ms", high="1h"), default="30s")
    max_deliver: int = setting("NOTIFICATION_NATS_MAX_DELIVER", integer(low=1, high=1000), default="5")
    fetch: int = setting("NOTIFICATION_NATS_FETCH", integer(low=1, high=5000), default="200")


class AdvisoryConsumer(NamedTuple):
    """The stream and the consumer of one kind of advisory."""

    stream: str
    durable: str
    max_age: timedelta


@dataclass(frozen=True, slots=True)
class AdvisorySettings:
    """Where advisories are stored until a recorder runs, and its consumer of each kind; by default one stream."""

    stream: str = setting("NOTIFICATION_NATS_ADVISORY_STREAM", text, default="ENTITLEMENTS_ADVISORIES")
    durable: str = setting("NOTIFICATION_NATS_ADVISORY_DURABLE", text, default="max-deliveries-recorder")
    max_age: timedelta = setting("NOTIFICATION_NATS_ADVISORY_MAX_AGE", duration(low="1h"), default="14d")
    terminated_stream: str | None = setting("NOTIFICATION_NATS_TERMINATED_ADVISORY_STREAM", text, optional=True)
    terminated_durable: str = setting(
        "NOTIFICATION_NATS_TERMINATED_ADVISORY_DURABLE", text, default="terminated-recorder"
    )
    terminated_max_age: timedelta | None = setting(
        "NOTIFICATION_NATS_TERMINATED_ADVISORY_MAX_AGE", duration(low="1h"), optional=True
    )

    @property
    def consumers(self) -> dict[str, AdvisoryConsumer]:
        """The consumer of each kind of advisory; terminated advisories use the stream of the others by default."""
        return {
            "MAX_DELIVERIES": AdvisoryConsumer(self.stream, self.durable, self.max_age),
            "MSG_TERMINATED": AdvisoryConsumer(
                self.terminated_stream or self.stream, self.terminated_durable, self.terminated_max_age or self.max_age
            ),
        }

    def problems(self) -> Iterator[str]:
        """Yield contradictions between the two kinds, if they share a stream."""
        first, second = self.consumers.values()
        if first.stream != second.stream:
            return
        if first.max_age != second.max_age:
            yield (
                "NOTIFICATION_NATS_TERMINATED_ADVISORY_MAX_AGE must be the same as NOTIFICATION_NATS_ADVISORY_MAX_AGE, "
                "unless NOTIFICATION_NATS_TERMINATED_ADVISORY_STREAM names another stream"
            )
        if first.durable == second.durable:
            yield "NOTIFICATION_NATS_TERMINATED_ADVISORY_DURABLE must differ from NOTIFICATION_NATS_ADVISORY_DURABLE"


@dataclass(frozen=True, slots=True)
class TopologySettings:
    """All streams and consumers: every worker ensures all of them, so that any worker can start first."""

    events: StreamSettings = group(StreamSettings)
    consumer: ConsumerSettings = group(ConsumerSettings)
    advisories: AdvisorySettings = group(AdvisorySettings)
    retention_days: int = setting("NOTIFICATION_RETENTION_RETENTION_DAYS", integer(low=1, high=3650), default="30")
    events_tuned: Mapping[str, str] | None = tuning("ENTITLEMENT_NATS_TUNING", *EVENT_STREAM_PROPERTIES)
    consumer_tuned: Mapping[str, str] | None = tuning("NOTIFICATION_NATS_TUNING", *EVENT_CONSUMER_PROPERTIES)

    def problems(self) -> Iterator[str]:
        """Yield contradictions: the inbox must remember an event for longer than the stream can deliver it."""
        if self.events.max_age >= timedelta(days=self.retention_days):
            yield (
                "ENTITLEMENT_NATS_MAX_AGE must be shorter than NOTIFICATION_RETENTION_RETENTION_DAYS, "
                "because the inbox must not forget an event that the stream can still deliver"
            )
        if self.consumer.stream != self.events.stream:
            yield "NOTIFICATION_NATS_STREAM must be the same as ENTITLEMENT_NATS_STREAM"


async def ensure_topology(connection: NatsConnection, settings: TopologySettings) -> None:
    """Create or update the advisory streams, the event stream and the consumers, in this order.

    The advisory streams come first, so that no advisory about an event can be missed. Concurrent calls are safe.
    """
    with wrap_exceptions():
        jetstream = connection.jetstream
        for stream in _advisory_streams(settings):
            await _ensure_stream(jetstream, stream)
        await _ensure_stream(jetstream, _event_stream(settings.events))
        await _ensure_consumer(jetstream, settings.consumer.stream, _bridge_consumer(settings.consumer))
        for name, consumer in _recorder_consumers(settings):
            await _ensure_consumer(jetstream, name, consumer)


def _advisory_streams(settings: TopologySettings) -> Iterator[StreamConfig]:
    """Return the stream of each kind of advisory, or one stream if they share it."""
    subjects: dict[AdvisoryConsumer, list[str]] = {}
    for kind, consumer in settings.advisories.consumers.items():
        shared = consumer._replace(durable="")
        subjects.setdefault(shared, []).append(ADVISORY_SUBJECTS[kind].format(stream=settings.events.stream))
    for stream, names in subjects.items():
        yield StreamConfig(
            name=stream.stream,
            subjects=names,
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            max_age=stream.max_age.total_seconds(),
            num_replicas=settings.events.replicas,
        )


def _event_stream(settings: StreamSettings) -> StreamConfig:
    """Return the event stream; not a work queue, which would delete a terminated message before it is a dead letter."""
    return StreamConfig(
        name=settings.stream,
        subjects=[settings.subject],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.OLD,
        max_age=settings.max_age.total_seconds(),
        duplicate_window=settings.duplicate_window.total_seconds(),
        num_replicas=settings.replicas,
        allow_direct=True,
    )


def _bridge_consumer(settings: ConsumerSettings) -> ConsumerConfig:
    return ConsumerConfig(
        durable_name=settings.durable,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=settings.ack_wait.total_seconds(),
        max_deliver=settings.max_deliver,
        max_ack_pending=max(1000, 10 * settings.fetch),
    )


def _recorder_consumers(settings: TopologySettings) -> Iterator[tuple[str, ConsumerConfig]]:
    """Return the recorder's consumers with their streams; no limit of deliveries, so that no advisory is lost."""
    for kind, consumer in settings.advisories.consumers.items():
        yield (
            consumer.stream,
            ConsumerConfig(
                durable_name=consumer.durable,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=settings.consumer.ack_wait.total_seconds(),
                filter_subject=ADVISORY_SUBJECTS[kind].format(stream=settings.events.stream),
            ),
        )


async def _ensure_stream(jetstream: JetStreamContext, desired: StreamConfig) -> None:
    try:
        current = (await jetstream.stream_info(str(desired.name))).config
    except JetStreamNotFoundError:
        try:
            await jetstream.add_stream(desired)
        except JetStreamBadRequestError:  # another worker created it in the meantime
            await jetstream.update_stream(desired)
        return
    # Fields that only an operator sets (placement, compression, limits) keep their values.
    if changes := _differences(current, desired):
        await jetstream.update_stream(current.evolve(**changes))


async def _ensure_consumer(jetstream: JetStreamContext, stream: str, desired: ConsumerConfig) -> None:
    try:
        current = (await jetstream.consumer_info(stream, str(desired.durable_name))).config
    except JetStreamNotFoundError:
        current = None
    if current is None or _differences(current, desired):
        await jetstream.add_consumer(stream, desired)


def _differences(current: Any, desired: Any) -> dict[str, Any]:
    """Return the fields that `desired` sets and that have other values in `current`."""
    fields = {name: getattr(desired, name) for name in desired.__dataclass_fields__}
    defaults = type(desired)()
    return {
        name: value
        for name, value in fields.items()
        if value != getattr(defaults, name) and value != getattr(current, name)
    }
