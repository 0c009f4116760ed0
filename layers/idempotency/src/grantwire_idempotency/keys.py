"""What makes two messages, or two calls of a job, the same one: strategies that make the idempotency key (C2).

    message_id                                 the id that the queue gave it; what consumers use unless told otherwise
    business_key("order", "order_id", "sku")   SHA-256 of fields of the payload, whoever sends it and how often
    request_id()                               an id that the sender wrote into an attribute; "" if there is none
    entity_key("invoice", "invoice.id")        "invoice:2024-001", readable; one run for each entity
    payload_hash("report")                     SHA-256 of the whole payload

Each is called with the arguments of the consumer or job, and looks at the first of them that is a Message or a mapping:
so it serves `(event, context)` handlers, plain functions and methods alike. Fields are names, or paths with dots. A
field that is missing or null is a BadRequestError that names it, never part of a key: two messages without a user are
not the same message. Values keep their type: 1 and "1" are two keys. An empty key makes a consumer take the message's
id, and a job run without idempotency.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from grantwire_idempotency.errors import BadRequestError, ConfigError
from grantwire_idempotency.messages import Message

KeyStrategy = Callable[..., str]


def message_id(*args: Any, **kwargs: Any) -> str:
    """The message's id; of a plain payload the field `id`."""
    subject = subject_of(args, kwargs)
    return subject.id if isinstance(subject, Message) else _identifier(subject, "id")


def business_key(kind: str, *fields: str) -> KeyStrategy:
    """SHA-256 over `kind` and the named fields of the payload; no two different sets of values share a key."""
    _require_names(kind, *fields, what="business_key needs a kind and the names of one or more fields", least=2)

    def key(*args: Any, **kwargs: Any) -> str:
        subject = subject_of(args, kwargs)
        return fingerprint({"kind": kind, "fields": {name: field_of(subject, name) for name in fields}})

    return key


def request_id(attribute: str = "request_id") -> KeyStrategy:
    """The id that an outer system gave: that attribute of a message, that field of a plain payload; "" if absent."""
    _require_names(attribute, what="request_id needs the name of an attribute")

    def key(*args: Any, **kwargs: Any) -> str:
        subject = subject_of(args, kwargs)
        found = subject.attributes.get(attribute) if isinstance(subject, Message) else _find(subject, attribute)
        if found is not None and not isinstance(found, str):
            raise BadRequestError(f"{attribute} must be a string")
        return found or ""

    return key


def entity_key(kind: str, field: str) -> KeyStrategy:
    """`{kind}:{id}` with the id, text or a whole number, from the named field of the payload."""
    _require_names(kind, field, what="entity_key needs a kind and the name of a field")

    def key(*args: Any, **kwargs: Any) -> str:
        return f"{kind}:{_identifier(subject_of(args, kwargs), field)}"

    return key


def payload_hash(kind: str = "") -> KeyStrategy:
    """SHA-256 of the payload; order and white space of its JSON make no difference."""
    if not isinstance(kind, str):
        raise ConfigError(["kind of payload_hash must be a string"])

    def key(*args: Any, **kwargs: Any) -> str:
        subject = subject_of(args, kwargs)
        return fingerprint({"kind": kind, "payload": subject.payload if isinstance(subject, Message) else subject})

    return key


def subject_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Message | Mapping[str, Any]:
    """What a call is about: its first argument that is a message or a mapping."""
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, Message | Mapping):
            return argument
    raise BadRequestError("this idempotency key needs a message or a payload with named fields")


def field_of(subject: Message | Mapping[str, Any], path: str) -> Any:
    """The value of a field of the payload; BadRequestError if it is missing or null."""
    payload = subject.payload if isinstance(subject, Message) else subject
    if not isinstance(payload, Mapping):
        raise BadRequestError("the payload must be an object")
    found = _find(payload, path)
    if found is None:
        raise BadRequestError(f"{path} is missing")
    return found


def fingerprint(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value, which no two different values share."""
    try:
        text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequestError(f"the idempotency key can only be made of JSON values: {error}") from None
    return hashlib.sha256(text.encode()).hexdigest()


def _find(payload: Mapping[str, Any], path: str) -> Any:
    """A field of that very name, else the one at the end of the path; None if there is none."""
    if path in payload:
        return payload[path]
    first, dot, rest = path.partition(".")
    inner = payload.get(first) if dot else None
    return _find(inner, rest) if isinstance(inner, Mapping) else None


def _identifier(subject: Message | Mapping[str, Any], path: str) -> str:
    found = field_of(subject, path)
    if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
        raise BadRequestError(f"{path} must be a text that is not empty, or a whole number")
    return str(found)


def _plain(value: Any) -> Any:
    """The same with dictionaries in place of other mappings, which the JSON encoder does not know."""
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("names must be strings")
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _require_names(*names: object, what: str, least: int = 1) -> None:
    if len(names) < least or not all(isinstance(name, str) and name for name in names):
        raise ConfigError([what])
