"""Batches: validated requests for up to 100 changes, and their execution in one SQL call (K6).

An item of a batch is a single request with its own idempotency key. Its key has the scope of the single route, and its
request hash is the same, so that an item and a single request replay each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.entitlements.commands import ChangeCommand, Operation
from grantwire.errors import BadRequestError
from grantwire.idempotency import parse_item_key
from grantwire.validation import MAX_NAME_LENGTH

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from grantwire.errors import NotAppliedError, RejectedError, RetryableError
    from grantwire.idempotency import StoredResponse

    ItemResult = StoredResponse | RejectedError | RetryableError

MAX_ITEMS = 100
MAX_BATCH_BYTES = 256 * 1024

_FIELDS = ("atomic", "items")
_OPERATIONS = {operation.name.lower(): operation for operation in Operation}


class BatchItem(NamedTuple):
    """One change of a batch, with its idempotency key."""

    command: ChangeCommand
    key: str

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Validate an item: the fields of a single request, its operation and its idempotency key."""
        for name in ("operation", "idempotency_key"):
            if name not in fields:
                raise BadRequestError(f"{name} is missing")
        name = fields["operation"]
        operation = _OPERATIONS.get(name) if isinstance(name, str) else None
        if operation is None:
            raise BadRequestError(f"operation must be one of: {', '.join(_OPERATIONS)}")
        key = parse_item_key(fields["idempotency_key"])
        rest = {name: value for name, value in fields.items() if name not in {"operation", "idempotency_key"}}
        return cls(ChangeCommand.parse(operation, rest), key)


class BatchEnvelope(NamedTuple):
    """A batch whose items are not validated yet."""

    atomic: bool
    items: list[dict[str, Any]]

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Validate the fields of a batch, but not those of its items. The BadRequestError names the invalid field."""
        for name in fields:
            if name not in _FIELDS:
                raise BadRequestError(f"unknown field {name[:MAX_NAME_LENGTH]!a}; allowed: {', '.join(_FIELDS)}")
        atomic, items = fields.get("atomic", False), fields.get("items")
        if not isinstance(atomic, bool):
            raise BadRequestError("atomic must be true or false")
        if "items" not in fields:
            raise BadRequestError("items is missing")
        if not isinstance(items, list) or not 1 <= len(items) <= MAX_ITEMS:
            raise BadRequestError(f"items must be an array of 1 to {MAX_ITEMS} objects")
        for number, item in enumerate(items):
            if not isinstance(item, dict):
                raise BadRequestError(f"items[{number}] must be an object")
        return cls(atomic, items)


class BatchCommand(NamedTuple):
    """A request for several changes. With `atomic`, either all of them are made or none.

    An invalid item is the error that a single request would get.
    """

    atomic: bool
    items: list[BatchItem | BadRequestError]

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Validate a batch. Raises BadRequestError if the batch itself is malformed; an invalid item raises nothing."""
        envelope = BatchEnvelope.parse(fields)
        return cls(envelope.atomic, [_parse_item(item) for item in envelope.items])


def _parse_item(fields: Mapping[str, Any]) -> BatchItem | BadRequestError:
    try:
        return BatchItem.parse(fields)
    except BadRequestError as error:
        return error


class BatchResult(NamedTuple):
    """The result of each item, in order: its response, or the error that a single request would get.

    If an atomic batch was not applied, `not_applied` names the refused item, and is the result of all other items.
    """

    results: list[ItemResult]
    not_applied: NotAppliedError | None = None
