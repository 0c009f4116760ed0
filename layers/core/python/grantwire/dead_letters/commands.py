"""Parsing and validation of a command on dead letters: redrive or discard, and which of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from grantwire.errors import BadRequestError
from grantwire.operator_actions import MAX_TEXT_LENGTH
from grantwire.settings import parse_duration
from grantwire.validation import MAX_NAME_LENGTH, clean_text, refuse_unknown_fields

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta
    from typing import Self

FILTERS = ("cause", "event_type", "user_id", "stock_keeping_unit", "error", "older_than", "newer_than")
KINDS = ("outbox", "notification", "nats")
MAX_LIMIT = 100_000
MAX_RATE = 10_000
_MAX_IDS = 400
_FIELDS = ("kind", "ids", "filter", "all", "dry_run", "force", "limit", "rate")


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that a dead letter must meet, all of those that are set; `error` is a substring of its error.

    `cause` is the error without the parts that differ from one dead letter to the next, as the groups show it.
    """

    cause: str | None = None
    event_type: str | None = None
    user_id: str | None = None
    stock_keeping_unit: str | None = None
    error: str | None = None
    older_than: timedelta | None = None
    newer_than: timedelta | None = None

    @classmethod
    def parse(cls, value: object) -> Self:
        """Validate the conditions; a duration is text such as `2h` or `7d`. Raises BadRequestError."""
        allowed = ", ".join(FILTERS)
        if not isinstance(value, dict) or not value:
            raise BadRequestError(f"filter must be an object with at least one of {allowed}")
        for name in value:
            if name not in FILTERS:
                raise BadRequestError(f"unknown filter {name[:MAX_NAME_LENGTH]!a}; allowed: {allowed}")
        return cls(**{name: _parse_condition(name, condition) for name, condition in value.items()})


@dataclass(frozen=True, slots=True)
class DeadLetterCommand:
    """A command to redrive or discard dead letters of one kind, at most `rate` a second.

    `selection` is the part of the request that selects them, kept for the record in `operator_actions`.
    """

    action: str
    kind: str
    ids: tuple[UUID, ...] | None = None
    filter: Filter = field(default_factory=Filter)
    dry_run: bool = False
    force: bool = False
    limit: int = MAX_LIMIT
    rate: int | None = None
    selection: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, action: str, arguments: Mapping[str, Any]) -> Self:
        """Validate every argument of a redrive or a discard; BadRequestError names it and what is allowed."""
        refuse_unknown_fields(arguments, (*_FIELDS, "actor", "reason"))
        if (kind := arguments.get("kind")) not in KINDS:
            raise BadRequestError(f"kind must be one of {', '.join(KINDS)}, not {kind!a}")
        selection = _parse_selection(arguments)
        return cls(
            action,
            kind,
            ids=_parse_ids(selection["ids"]) if "ids" in selection else None,
            filter=Filter.parse(selection["filter"]) if "filter" in selection else Filter(),
            dry_run=_parse_flag(arguments, "dry_run"),
            force=_parse_flag(arguments, "force"),
            limit=_parse_number(arguments, "limit", MAX_LIMIT) if "limit" in arguments else MAX_LIMIT,
            rate=_parse_number(arguments, "rate", MAX_RATE) if "rate" in arguments else None,
            selection=selection,
        )


def _parse_selection(arguments: Mapping[str, Any]) -> dict[str, Any]:
    selection = {name: arguments[name] for name in ("ids", "filter") if arguments.get(name) is not None}
    if _parse_flag(arguments, "all"):
        selection["all"] = True
    if len(selection) != 1:
        raise BadRequestError('select dead letters with exactly one of "ids", "filter" and "all": true')
    return selection


def _parse_flag(arguments: Mapping[str, Any], name: str) -> bool:
    value = arguments.get(name, False)
    if not isinstance(value, bool):
        raise BadRequestError(f"{name} must be true or false")
    return value


def _parse_number(arguments: Mapping[str, Any], name: str, maximum: int) -> int:
    value = arguments[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        raise BadRequestError(f"{name} must be a whole number between 1 and {maximum}")
    return value


def _parse_ids(value: object) -> tuple[UUID, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_IDS:
        raise BadRequestError(f"ids must be a list of 1 to {_MAX_IDS} UUIDs; use filter or all to select more")
    try:
        return tuple(dict.fromkeys(UUID(str(item)) for item in value))
    except ValueError:
        raise BadRequestError("ids must be UUIDs, as the list of dead letters shows them") from None


def _parse_condition(name: str, value: object) -> Any:
    text = clean_text(f"filter.{name}", value, max_length=MAX_TEXT_LENGTH)
    if name not in {"older_than", "newer_than"}:
        return text
    try:
        return parse_duration(text)
    except ValueError as error:
        raise BadRequestError(f"filter.{name} {error}") from None
