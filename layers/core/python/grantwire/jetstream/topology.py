"""Streams and consumers: their settings, creation and update at deployment, and verification by workers (N2, N3).

`ensure_topology` creates or updates them; only the task configure_streams calls it. Workers call `verify_streams` or
`verify_topology`, which read and never write, so the NATS user of the workers needs no permission to change a stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import BadRequestError as JetStreamBadRequestError
from nats.js.errors import NotFoundError as JetStreamNotFoundError

from grantwire.errors import TopologyError
from grantwire.observability import logger
from grantwire.settings import duration, group, integer, setting, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nats.js import JetStreamContext

    from grantwire.jetstream.connection import NatsConnection

# Only advisories about the bridge's consumer are stored: other consumers of the stream are not Grantwire's concern.
_ADVISORY_PREFIX = "$JS.EVENT.ADVISORY.CONSUMER."
ADVISORY_SUBJECTS = {
    "MAX_DELIVERIES": f"{_ADVISORY_PREFIX}MAX_DELIVERIES.{{stream}}.{{durable}}",
    "MSG_TERMINATED": f"{_ADVISORY_PREFIX}MSG_TERMINATED.{{stream}}.{{durable}}",
}

_REPAIR = "invoke configure_streams"
_FILTERS = ("filter_subject", "filter_subjects")


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
    durable: str = setting("NOTIFICATION_NATS_DURABLE", text, default="grantwire-bridge")
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
    """All streams and consumers: configure_streams creates them, and every worker compares them with its settings."""

    events: StreamSettings = group(StreamSettings)
    consumer: ConsumerSettings = group(ConsumerSettings)
    advisories: AdvisorySettings = group(AdvisorySettings)
    retention_days: int = setting("NOTIFICATION_RETENTION_RETENTION_DAYS", integer(low=1, high=3650), default="30")

    def problems(self) -> Iterator[str]:
        """Yield contradictions: the inbox must remember an event for longer than the stream can deliver it."""
        if self.events.max_age >= timedelta(days=self.retention_days):
            yield (
                "ENTITLEMENT_NATS_MAX_AGE must be shorter than NOTIFICATION_RETENTION_RETENTION_DAYS, "
                "because the inbox must not forget an event that the stream can still deliver"
            )
        if self.consumer.stream != self.events.stream:
            yield "NOTIFICATION_NATS_STREAM must be the same as ENTITLEMENT_NATS_STREAM"

    def advisory_subject(self, kind: str) -> str:
        """Return the subject of the advisories of one kind about the bridge's consumer."""
        return ADVISORY_SUBJECTS[kind].format(stream=self.events.stream, durable=self.consumer.durable)


@dataclass(frozen=True, slots=True)
class TopologyChanges:
    """The names of the streams and consumers that were created, and of those that were updated."""

    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)

    def add_created(self, name: str) -> None:
        """Add and log a stream or consumer that was created."""
        self.created.append(name)
        logger.info("stream or consumer created", object=name)

    def add_updated(self, name: str, changed: Sequence[str]) -> None:
        """Add and log a stream or consumer of which the fields `changed` were updated."""
        self.updated.append(name)
        logger.info("stream or consumer updated", object=name, fields=list(changed))


async def ensure_topology(
    connection: NatsConnection, settings: TopologySettings, readers: Sequence[str] = ()
) -> TopologyChanges:
    """Create or update the advisory streams, the event stream and the consumers, in this order; return the changes.

    The advisory streams come first, so that no advisory about an event can be missed. Concurrent calls are safe.
    `readers` are the durable consumers of other systems. Settings that only an operator makes (placement, compression,
    limits, more replicas) keep their values. Raises RetryableError if NATS refuses a change.
    """
    changes = TopologyChanges()
    with connection.wrap_exceptions():
        jetstream = connection.jetstream
        for stream in (*_advisory_streams(settings), _event_stream(settings.events)):
            await _ensure_stream(jetstream, stream, changes)
        for stream_name, consumer in _consumers(settings):
            await _ensure_consumer(jetstream, stream_name, consumer, changes)
        for reader in readers:
            await _ensure_consumer(jetstream, settings.events.stream, _reader_consumer(reader), changes)
    return changes


async def verify_streams(connection: NatsConnection, settings: TopologySettings) -> None:
    """Compare all streams with the settings; raise RetryableError that names every difference that matters."""
    await _verify(connection, settings, [])


async def verify_topology(connection: NatsConnection, settings: TopologySettings) -> None:
    """Compare the streams and Grantwire's consumers with the settings, as `verify_streams` does."""
    await _verify(connection, settings, list(_consumers(settings)))


async def _verify(
    connection: NatsConnection, settings: TopologySettings, consumers: Sequence[tuple[str, ConsumerConfig]]
) -> None:
    problems: list[str] = []
    with connection.wrap_exceptions():
        jetstream = connection.jetstream
        max_age_limit = timedelta(days=settings.retention_days).total_seconds()
        for stream in (*_advisory_streams(settings), _event_stream(settings.events)):
            limit = max_age_limit if stream.name == settings.events.stream else None
            current = await _find_stream(jetstream, str(stream.name))
            found = ["is missing"] if current is None else _stream_problems(current, stream, limit)
            problems += [f"stream {stream.name}: {problem}" for problem in found]
        for stream_name, consumer in consumers:
            actual = await _find_consumer(jetstream, stream_name, str(consumer.durable_name))
            found = ["is missing"] if actual is None else _consumer_problems(actual, consumer)
            problems += [f"consumer {consumer.durable_name} of stream {stream_name}: {problem}" for problem in found]
    if problems:
        raise TopologyError(f"{'; '.join(problems)}; {_REPAIR}")


def _stream_problems(current: StreamConfig, desired: StreamConfig, max_age_limit: float | None) -> Iterator[str]:
    """Yield each difference that endangers events.

    More subjects, replicas or time to recognise duplicates than required are an operator's choice.
    """
    for subject in desired.subjects or []:
        if subject not in (current.subjects or []):
            yield f"subject {subject} is missing"
    for name in ("retention", "storage"):
        if getattr(current, name) != getattr(desired, name):
            yield f"{name} is {_text(getattr(current, name))}, must be {_text(getattr(desired, name))}"
    for name in ("duplicate_window", "num_replicas"):
        actual, required = getattr(current, name) or 0, getattr(desired, name) or 0
        if actual < required:
            yield f"{name} is {actual:g}, must be at least {required:g}"
    max_age = current.max_age or float("inf")
    if max_age < (desired.max_age or 0):
        yield f"max_age is {max_age:g} s, must be at least {desired.max_age:g} s"
    if max_age_limit is not None and max_age >= max_age_limit:
        yield f"max_age must be below {max_age_limit:g} s, because the inbox forgets older events"


def _consumer_problems(current: ConsumerConfig, desired: ConsumerConfig) -> Iterator[str]:
    """Yield each difference that changes which messages are delivered, how often, or to whom."""
    for name in ("ack_policy", "ack_wait", "max_deliver", "deliver_policy", "deliver_subject", *_FILTERS):
        actual, required = getattr(current, name) or None, getattr(desired, name) or None
        if actual != required:
            yield f"{name} is {_text(actual)}, must be {_text(required)}"


def _text(value: object) -> str:
    return str(getattr(value, "value", "none" if value is None else value))


def _advisory_streams(settings: TopologySettings) -> Iterator[StreamConfig]:
    """Return the stream of each kind of advisory, or one stream if they share it."""
    subjects: dict[AdvisoryConsumer, list[str]] = {}
    for kind, consumer in settings.advisories.consumers.items():
        shared = consumer._replace(durable="")
        subjects.setdefault(shared, []).append(settings.advisory_subject(kind))
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


def _consumers(settings: TopologySettings) -> Iterator[tuple[str, ConsumerConfig]]:
    """Yield Grantwire's durable consumers, each with its stream.

    The recorder's consumers have no limit of deliveries, so that no advisory is lost.
    """
    ack_wait = settings.consumer.ack_wait.total_seconds()
    yield (
        settings.consumer.stream,
        _durable(
            settings.consumer.durable,
            ack_wait=ack_wait,
            max_deliver=settings.consumer.max_deliver,
            max_ack_pending=max(1000, 10 * settings.consumer.fetch),
        ),
    )
    for kind, advisories in settings.advisories.consumers.items():
        subject = settings.advisory_subject(kind)
        yield advisories.stream, _durable(advisories.durable, ack_wait=ack_wait, filter_subject=subject)


def _reader_consumer(name: str) -> ConsumerConfig:
    """Return the consumer of another system, which may take long and is never refused a redelivery."""
    return _durable(name)


def _durable(name: str, **options: Any) -> ConsumerConfig:
    """Return a durable pull consumer of all messages, with explicit acknowledgement.

    With `name`, nats-py uses the API subject that contains the name and the filter, so that a permission can name them.
    """
    values = {"max_deliver": -1, **options}
    return ConsumerConfig(
        name=name,
        durable_name=name,
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        **values,
    )


async def _find_stream(jetstream: JetStreamContext, name: str) -> StreamConfig | None:
    try:
        return (await jetstream.stream_info(name)).config
    except JetStreamNotFoundError:
        return None


async def _find_consumer(jetstream: JetStreamContext, stream: str, name: str) -> ConsumerConfig | None:
    try:
        info = await jetstream.consumer_info(stream, name)
    except JetStreamNotFoundError:
        return None
    config: ConsumerConfig = info.config
    return config


async def _ensure_stream(jetstream: JetStreamContext, desired: StreamConfig, changes: TopologyChanges) -> None:
    name = f"stream {desired.name}"
    current = await _find_stream(jetstream, str(desired.name))
    if current is None:
        try:
            await jetstream.add_stream(desired)
        except JetStreamBadRequestError:
            current = await _find_stream(jetstream, str(desired.name))
            if current is None:
                raise  # for example, another stream has the subject
        else:
            changes.add_created(name)
            return
    if differences := _stream_differences(current, desired):
        await jetstream.update_stream(current.evolve(**differences))
        changes.add_updated(name, sorted(differences))


def _stream_differences(current: StreamConfig, desired: StreamConfig) -> dict[str, Any]:
    """Return the fields to change: those that `desired` sets, without subjects and replicas that suffice.

    An advisory subject that belongs to another stream now is removed.
    """
    defaults = StreamConfig()
    set_by_us = {item.name: getattr(desired, item.name) for item in fields(desired)}
    differences = {
        name: value
        for name, value in set_by_us.items()
        if value != getattr(defaults, name) and value != getattr(current, name)
    }
    required, additional = set(desired.subjects or []), set(current.subjects or []) - set(desired.subjects or [])
    is_moved = any(subject.startswith(_ADVISORY_PREFIX) for subject in additional)
    if required <= set(current.subjects or []) and not is_moved:
        differences.pop("subjects", None)
    if (current.num_replicas or 1) >= (desired.num_replicas or 1):
        differences.pop("num_replicas", None)
    return differences


async def _ensure_consumer(
    jetstream: JetStreamContext, stream: str, desired: ConsumerConfig, changes: TopologyChanges
) -> None:
    name = f"consumer {desired.durable_name} of stream {stream}"
    current = await _find_consumer(jetstream, stream, str(desired.durable_name))
    if current is None:
        await jetstream.add_consumer(stream, desired)
        changes.add_created(name)
    elif differences := _consumer_differences(current, desired):
        await jetstream.add_consumer(stream, current.evolve(**differences))
        changes.add_updated(name, sorted(differences))


def _consumer_differences(current: ConsumerConfig, desired: ConsumerConfig) -> dict[str, Any]:
    """Return the fields to change: those that `desired` sets, and filters, which must not hide messages."""
    managed = ("ack_policy", "ack_wait", "max_deliver", "max_ack_pending", "deliver_policy")
    differences = {
        name: getattr(desired, name)
        for name in managed
        if getattr(desired, name) is not None and getattr(desired, name) != getattr(current, name)
    }
    for name in _FILTERS:
        if (getattr(current, name) or None) != (getattr(desired, name) or None):
            differences[name] = getattr(desired, name)
    return differences
