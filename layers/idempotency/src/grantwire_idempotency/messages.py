"""A message as the library sees it, whichever queue or stream it comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from grantwire_idempotency.errors import BadRequestError

if TYPE_CHECKING:
    from typing import Self

# Where senders write what kind of message it is; the first one that is there counts.
_TYPE_ATTRIBUTES = ("type", "event_type", "message_type")


@dataclass(frozen=True, slots=True)
class Message:
    """One delivery: the same message may be delivered again, with the same id.

    `group` is set where messages of one group must keep their order: after a failure the later ones have to wait.
    """

    id: str
    type: str = ""
    body: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None

    @property
    def payload(self) -> Any:
        """The body as JSON, parsed anew each time, so that nobody's changes reach anybody else; or BadRequestError."""
        try:
            return json.loads(self.body, parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise BadRequestError("the body of the message is not valid JSON") from None

    @classmethod
    def from_sqs(cls, record: Any) -> Self:
        """A record of an SQS event, plain or as Powertools' SQSRecord; BadRequestError if it is none.

        Attributes are those with a text or number for a value. The group counts only if the queue is a FIFO queue: in
        a standard queue it is there for fairness, and says nothing about order.
        """
        raw = _fields(record)
        identifier, body = raw.get("messageId"), raw.get("body")
        if not isinstance(identifier, str) or not identifier:
            raise BadRequestError("messageId of an SQS record must be a string")
        if not isinstance(body, str):
            raise BadRequestError("body of an SQS record must be a string")
        attributes = _attributes(raw.get("messageAttributes"))
        kind = next((attributes[name] for name in _TYPE_ATTRIBUTES if name in attributes), "")
        return cls(identifier, kind, body, attributes, _group(raw))


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a batch has to know of a message, even of one that cannot be read."""

    id: str
    group: str | None
    message: Message | None

    @classmethod
    def of_sqs(cls, record: Any) -> Self:
        """A record of an SQS event; without a message if it cannot be read, without an id if not even that can."""
        try:
            raw = _fields(record)
        except BadRequestError:
            return cls("", None, None)
        try:
            message = Message.from_sqs(raw)
        except BadRequestError:
            identifier = raw.get("messageId")
            return cls(identifier if isinstance(identifier, str) else "", _group(raw), None)
        return cls(message.id, message.group, message)


def _fields(record: Any) -> Mapping[str, Any]:
    """The plain record, also of one that Powertools has wrapped."""
    raw = getattr(record, "raw_event", record)
    if not isinstance(raw, Mapping):
        raise BadRequestError("an SQS record must be an object")
    return raw


def _group(raw: Mapping[str, Any]) -> str | None:
    """The message group of a record from a FIFO queue."""
    queue, attributes = raw.get("eventSourceARN"), raw.get("attributes")
    group = attributes.get("MessageGroupId") if isinstance(attributes, Mapping) else None
    ordered = not isinstance(queue, str) or queue.endswith(".fifo")
    return group if ordered and isinstance(group, str) else None


def _attributes(raw: Any) -> dict[str, str]:
    if not isinstance(raw, Mapping):
        return {}
    texts = {name: value.get("stringValue") for name, value in raw.items() if isinstance(value, Mapping)}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
