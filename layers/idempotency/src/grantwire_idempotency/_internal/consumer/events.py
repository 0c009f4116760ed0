"""The events that start a Lambda function, as messages: SQS, SNS, SNS or EventBridge through SQS, EventBridge, Kafka.

An event of another kind raises BadRequestError. If the function succeeded instead, its messages would be lost.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.keys.messages import (
    Message,
    find_type,
    parse_group,
    require_message,
    unwrap_record,
)
from grantwire_idempotency.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

_KAFKA_SOURCES = ("aws:kafka", "SelfManagedKafka")


@dataclass(frozen=True, slots=True)
class BatchItem:
    """An item of a batch: the id and group that the batch needs, and the message if it could be parsed."""

    id: str
    group: str | None
    message: Message | None

    @classmethod
    def from_message(cls, message: Message) -> Self:
        """Return the item of a message."""
        require_message(message)
        return cls(message.id, message.group, message)

    @classmethod
    def from_sqs_record(cls, record: Any, *, unwrap: bool = False) -> Self:
        """Parse a record of an SQS event. An invalid record has no message, and "" as its id if that is invalid too.

        With `unwrap`, a notification of SNS or an event of EventBridge in the body becomes the message. Its id stays
        the same if SNS or EventBridge sends it to the queue twice; the id of the item is that of SQS.
        """
        try:
            raw = unwrap_record(record)
        except BadRequestError:
            return cls("", None, None)
        try:
            message = Message.from_sqs(raw)
        except BadRequestError:
            identifier = raw.get("messageId")
            return cls(identifier if isinstance(identifier, str) else "", parse_group(raw), None)
        return cls(message.id, message.group, _unwrap_body(message) if unwrap else message)


@dataclass(frozen=True, slots=True)
class ParsedEvent:
    """The items of an event. `is_partial`: Lambda reads from the response which of them to deliver again."""

    items: Sequence[BatchItem]
    is_partial: bool


def parse_event(event: Any) -> ParsedEvent:
    """Return the messages of an event. Raises BadRequestError if the event is not of a known kind."""
    raw = getattr(event, "raw_event", event)
    if not isinstance(raw, Mapping):
        raise BadRequestError("the event must be an object")
    if "detail-type" in raw and "detail" in raw:
        return ParsedEvent([BatchItem.from_message(_from_eventbridge(raw))], is_partial=False)
    if raw.get("eventSource") in _KAFKA_SOURCES and isinstance(raw.get("records"), Mapping):
        return ParsedEvent(_parse_kafka_records(raw["records"]), is_partial=False)
    sources = {_source(record) for record in raw["Records"]} if isinstance(raw.get("Records"), list) else set()
    if sources == {"aws:sns"}:
        items = [BatchItem.from_message(_from_sns(record.get("Sns"))) for record in raw["Records"]]
        return ParsedEvent(items, is_partial=False)
    return ParsedEvent(parse_sqs_records(raw, unwrap=True), is_partial=True)


def parse_sqs_records(event: Mapping[str, Any], *, unwrap: bool = False) -> list[BatchItem]:
    """Return the records of an SQS event. Raises BadRequestError if it is not one."""
    raw = getattr(event, "raw_event", event)
    records = raw.get("Records") if isinstance(raw, Mapping) else None
    if not isinstance(records, list):
        raise BadRequestError("unknown kind of event: an SQS event has a list of Records")
    if foreign := {_source(record) for record in records} - {"aws:sqs", None}:
        raise BadRequestError(f"unknown kind of event: records from {', '.join(sorted(map(str, foreign)))}")
    return [BatchItem.from_sqs_record(record, unwrap=unwrap) for record in records]


def _parse_kafka_records(partitions: Mapping[str, Any]) -> list[BatchItem]:
    """Return the records of each partition. An invalid record has no message and blocks the rest of its partition."""
    items: list[BatchItem] = []
    for partition, records in partitions.items():
        if not isinstance(records, list):
            raise BadRequestError("unknown kind of event: a partition of a Kafka event has a list of records")
        for record in records:
            try:
                items.append(BatchItem.from_message(_from_kafka(record)))
            except BadRequestError:
                offset = record.get("offset") if isinstance(record, Mapping) else None
                items.append(BatchItem(f"{partition}-{offset}", partition, None))
    return items


def _source(record: Any) -> str | None:
    raw = getattr(record, "raw_event", record)
    if not isinstance(raw, Mapping):
        return None
    source = raw.get("eventSource", raw.get("EventSource"))
    return None if source is None else str(source)


def _unwrap_body(message: Message) -> Message:
    try:
        body = json.loads(message.body)
    except (ValueError, RecursionError):
        return message
    if not isinstance(body, Mapping):
        return message
    try:
        if body.get("Type") == "Notification" and "TopicArn" in body:
            return replace(_from_sns(body), group=message.group)
        if "detail-type" in body and "detail" in body:
            return replace(_from_eventbridge(body), group=message.group)
    except BadRequestError:
        return message
    return message


def _from_sns(raw: Any) -> Message:
    if not isinstance(raw, Mapping):
        raise BadRequestError("Sns of an SNS record must be an object")
    identifier, body = _text(raw, "MessageId"), _text(raw, "Message")
    attributes = raw.get("MessageAttributes")
    values = (
        {name: value.get("Value") for name, value in attributes.items() if isinstance(value, Mapping)}
        if isinstance(attributes, Mapping)
        else {}
    )
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    return Message(identifier, find_type(texts), body, texts)


def _from_eventbridge(raw: Mapping[str, Any]) -> Message:
    attributes = {name: raw[name] for name in ("source", "account", "region", "time") if isinstance(raw.get(name), str)}
    return Message(_text(raw, "id"), _text(raw, "detail-type"), json.dumps(raw["detail"]), attributes)


def _from_kafka(raw: Any) -> Message:
    """Parse a Kafka record, whose id is its place in the log. Records of a partition stay in order.

    A value that is not UTF-8 text is the body as bytes. A header that is not text is left out. Lambda writes the bytes
    of a header as numbers, which can be negative.
    """
    if not isinstance(raw, Mapping):
        raise BadRequestError("a Kafka record must be an object")
    place = (_text(raw, "topic"), raw.get("partition"), raw.get("offset"))
    if not all(type(number) is int for number in place[1:]):
        raise BadRequestError("partition and offset of a Kafka record must be integers")
    try:
        body = _decode(base64.b64decode(raw.get("value") or ""))
        pairs = [pair for header in raw.get("headers") or () for pair in header.items()]
        values = {name: _decode(bytes(byte % 256 for byte in value)) for name, value in pairs}
    except (binascii.Error, AttributeError, TypeError, ValueError):
        raise BadRequestError("value and headers of a Kafka record must be encoded bytes") from None
    headers = {name: value for name, value in values.items() if isinstance(value, str)}
    topic, partition, offset = place
    return Message(f"{topic}-{partition}-{offset}", find_type(headers), body, headers, f"{topic}-{partition}")


def _decode(value: bytes) -> str | bytes:
    """Return UTF-8 as text, and anything else as it is."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _text(raw: Mapping[str, Any], name: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequestError(f"{name} of the event must be a string")
    return value
