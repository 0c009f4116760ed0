"""Messages, independent of the queue or stream that they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from grantwire_idempotency._internal.foundation.type_parameters import Payload
from grantwire_idempotency.errors import BadRequestError, InternalError

if TYPE_CHECKING:
    from typing import Self

# Attributes that can contain the message type; the first one that is present counts.
TYPE_ATTRIBUTES = ("type", "event_type", "message_type")


# Without slots: Python sets an attribute on what Message[Order](...) creates, and expects an AttributeError of a frozen
# class. With slots, it is a TypeError.
@dataclass(frozen=True)
class Message(Generic[Payload]):
    """A message. The queue may deliver it again with the same id.

    `body` is text, or bytes if the message is binary. For type checkers, `Message[Order]` has a payload of type Order:
    the type is not checked when the message is read.

    `group` is set if the messages of a group must stay in order: after a failure, the later messages of the group wait.
    An attribute `redrive` says that a dead letter is delivered again on purpose.
    """

    id: str
    type: str = ""
    body: str | bytes = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None

    @property
    def payload(self) -> Payload:
        """The body, parsed as JSON on each access, so that changes to it affect no other reader.

        Raises BadRequestError if the body is not valid JSON.
        """
        try:
            return json.loads(self.body, parse_constant=_reject_constant)  # type: ignore[no-any-return]
        except (ValueError, RecursionError):
            raise BadRequestError("the body of the message is not valid JSON") from None

    @classmethod
    def from_sqs(cls, record: Any) -> Self:
        """Parse a record of an SQS event, either a mapping or Powertools' SQSRecord.

        Only attributes with a string or number value are kept. The message group is kept only for a FIFO queue: in a
        standard queue it serves fairness and does not imply an order. Raises BadRequestError for an invalid record.
        """
        raw = unwrap_record(record)
        identifier, body = raw.get("messageId"), raw.get("body")
        if not isinstance(identifier, str) or not identifier:
            raise BadRequestError("messageId of an SQS record must be a string")
        if not isinstance(body, str):
            raise BadRequestError("body of an SQS record must be a string")
        attributes = _parse_attributes(raw.get("messageAttributes"))
        return cls(identifier, find_type(attributes), body, attributes, parse_group(raw))


def require_message(message: object) -> None:
    """Raise InternalError if a caller passes anything else than a Message, such as the event itself."""
    if not isinstance(message, Message):
        raise InternalError(
            "a message must be a Message: write Message(id, body=text) or, for a record of SQS,"
            f" Message.from_sqs(record), not a {type(message).__name__}"
        )


def find_type(attributes: Mapping[str, str]) -> str:
    """Return the message type from the attributes, or ""."""
    return next((attributes[name] for name in TYPE_ATTRIBUTES if name in attributes), "")


def unwrap_record(record: Any) -> Mapping[str, Any]:
    """Return the record as a mapping, also if Powertools has wrapped it."""
    raw = getattr(record, "raw_event", record)
    if not isinstance(raw, Mapping):
        raise BadRequestError("an SQS record must be an object")
    return raw


def parse_group(raw: Mapping[str, Any]) -> str | None:
    """Return the message group of a record from a FIFO queue."""
    queue, attributes = raw.get("eventSourceARN"), raw.get("attributes")
    group = attributes.get("MessageGroupId") if isinstance(attributes, Mapping) else None
    is_fifo = not isinstance(queue, str) or queue.endswith(".fifo")
    return group if is_fifo and isinstance(group, str) else None


def _parse_attributes(raw: Any) -> dict[str, str]:
    if not isinstance(raw, Mapping):
        return {}
    texts = {name: value.get("stringValue") for name, value in raw.items() if isinstance(value, Mapping)}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
