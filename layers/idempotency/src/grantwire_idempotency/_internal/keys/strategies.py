"""Key strategies: functions that make the idempotency key of a message or of a call (C2).

    message_id                                 the id from the queue; the default of consumers
    business_key("order", "order_id", "sku")   SHA-256 of fields of the payload, independent of the sender
    request_id()                               an id that the sender set as an attribute; "" if there is none
    entity_key("invoice", "invoice.id")        a readable key, "invoice:2024-001"; one run for each entity
    payload_hash("report")                     SHA-256 of the whole payload

A strategy is called with the arguments of the consumer or the job and uses the first argument that is a Message or a
mapping. So it works for `(event, context)` handlers, plain functions and methods. Fields are names, or paths with dots.
A field that is missing or null raises a BadRequestError that names it, because two messages without a user are not the
same message. Values keep their type: 1 and "1" are different keys. For an empty key, a consumer uses the message id,
and a job runs without idempotency.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from grantwire_idempotency._internal.keys.messages import Message
from grantwire_idempotency.errors import BadRequestError, ConfigError

KeyStrategy = Callable[..., str]


def message_id(*args: Any, **kwargs: Any) -> str:
    """Return the id of a message, or the field `id` of a mapping."""
    subject = find_subject(args, kwargs)
    return subject.id if isinstance(subject, Message) else _get_id(subject, "id")


def business_key(kind: str, *fields: str) -> KeyStrategy:
    """Return a strategy that hashes `kind` and the named fields of the payload (SHA-256).

    Different values always have different keys.
    """
    require_names(kind, *fields, problem="business_key requires a kind and at least one field name", min_count=2)

    def key(*args: Any, **kwargs: Any) -> str:
        subject = find_subject(args, kwargs)
        return hash_json({"kind": kind, "fields": {name: get_field(subject, name) for name in fields}})

    return key


def request_id(attribute: str = "request_id") -> KeyStrategy:
    """Return a strategy that uses an attribute of a message, or a field of a mapping; "" if it is absent."""
    require_names(attribute, problem="request_id requires the name of an attribute")

    def key(*args: Any, **kwargs: Any) -> str:
        subject = find_subject(args, kwargs)
        value = subject.attributes.get(attribute) if isinstance(subject, Message) else _resolve(subject, attribute)
        if value is not None and not isinstance(value, str):
            raise BadRequestError(f"{attribute} must be a string")
        return value or ""

    return key


def entity_key(kind: str, field: str) -> KeyStrategy:
    """Return a strategy that makes `{kind}:{id}`. The id is a string or an integer in a field of the payload."""
    require_names(kind, field, problem="entity_key requires a kind and the name of a field")

    def key(*args: Any, **kwargs: Any) -> str:
        return f"{kind}:{_get_id(find_subject(args, kwargs), field)}"

    return key


def payload_hash(kind: str = "") -> KeyStrategy:
    """Return a strategy that hashes the payload (SHA-256). Key order and white space of the JSON do not matter.

    Of a message with bytes that are not JSON, it hashes the bytes.
    """
    if not isinstance(kind, str):
        raise ConfigError(["kind of payload_hash must be a string"])

    def key(*args: Any, **kwargs: Any) -> str:
        subject = find_subject(args, kwargs)
        try:
            payload = subject.payload if isinstance(subject, Message) else subject
        except BadRequestError:
            if not (isinstance(subject, Message) and isinstance(subject.body, bytes)):
                raise
            return hash_json({"kind": kind, "body": hash_body(subject.body)})
        return hash_json({"kind": kind, "payload": payload})

    return key


def find_subject(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Message | Mapping[str, Any]:
    """Return the first argument of a call that is a Message or a mapping. Raises BadRequestError if there is none."""
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, Message | Mapping):
            return argument
    raise BadRequestError("the idempotency key requires an argument that is a Message or a mapping")


def get_field(subject: Message | Mapping[str, Any], path: str) -> Any:
    """Return the value of a field of the payload. Raises BadRequestError if it is missing or null."""
    payload = subject.payload if isinstance(subject, Message) else subject
    if not isinstance(payload, Mapping):
        raise BadRequestError("the payload must be an object")
    value = _resolve(payload, path)
    if value is None:
        raise BadRequestError(f"{path} is missing")
    return value


def hash_body(body: str | bytes) -> str:
    """Return the SHA-256 of the body of a message."""
    return hashlib.sha256(body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")).hexdigest()


def hash_json(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of a value."""
    try:
        text = json.dumps(_to_json_value(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequestError(f"the idempotency key can contain only JSON values: {error}") from None
    return hashlib.sha256(text.encode()).hexdigest()


def _resolve(payload: Mapping[str, Any], path: str) -> Any:
    """Return the field with exactly this name, else the field at the end of the path, else None."""
    if path in payload:
        return payload[path]
    first, dot, rest = path.partition(".")
    inner = payload.get(first) if dot else None
    return _resolve(inner, rest) if isinstance(inner, Mapping) else None


def _get_id(subject: Message | Mapping[str, Any], path: str) -> str:
    value = get_field(subject, path)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise BadRequestError(f"{path} must be a non-empty string or an integer")
    return str(value)


def _to_json_value(value: Any) -> Any:
    """Replace mappings by dictionaries, because the JSON encoder does not support other mappings."""
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("names must be strings")
        return {name: _to_json_value(inner) for name, inner in value.items()}
    return [_to_json_value(inner) for inner in value] if isinstance(value, list | tuple) else value


def require_names(*names: object, problem: str, min_count: int = 1) -> None:
    """Raise ConfigError with the problem if a name is missing or empty."""
    if len(names) < min_count or not all(isinstance(name, str) and name for name in names):
        raise ConfigError([problem])
