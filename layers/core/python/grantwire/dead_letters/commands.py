"""Parsing and validation of an operator's command: action, selection of dead letters, actor and reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from grantwire.errors import BadRequestError
from grantwire.operator_actions import MAX_TEXT_LENGTH, parse_actor_and_reason
from grantwire.settings import parse_duration
from grantwire.validation import MAX_NAME_LENGTH, clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta
    from typing import Self

ACTIONS = ("list", "redrive", "discard")
FILTERS = ("cause", "event_type", "user_id", "stock_keeping_unit", "error", "older_than", "newer_than")
KINDS = ("outbox", "notification", "nats")
MAX_LIMIT = 100_000
_MAX_IDS = 1000
_FIELDS = ("action", "kind", "ids", "filter", "all", "dry_run", "force", "limit", "actor", "reason")


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
    """A command to list, redrive or discard dead letters of one kind.

    `selection` is the part of the event that selects them, kept for the record in `operator_actions`.
    """

    action: str
    kind: str
    ids: tuple[UUID, ...] | None = None
    filter: Filter = field(default_factory=Filter)
    dry_run: bool = False
    force: bool = False
    limit: int = MAX_LIMIT
    actor: str = ""
    reason: str = ""
    selection: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, event: Mapping[str, Any]) -> Self:
        """Validate every field of a function's event; BadRequestError names the field and what is allowed."""
        for name in event:
            if name not in _FIELDS:
                raise BadRequestError(f"unknown field {name!a}; allowed: {', '.join(_FIELDS)}")
        action = _parse_choice(event, "action", ACTIONS)
        kind = _parse_choice(event, "kind", KINDS)
        selection = _parse_selection(event, required=action != "list")
        actor, reason = ("", "") if action == "list" else parse_actor_and_reason(event)
        return cls(
            action=action,
            kind=kind,
            ids=_parse_ids(selection["ids"]) if "ids" in selection else None,
            filter=Filter.parse(selection["filter"]) if "filter" in selection else Filter(),
            dry_run=_parse_flag(event, "dry_run"),
            force=_parse_flag(event, "force"),
            limit=_parse_limit(event.get("limit", 100 if action == "list" else MAX_LIMIT)),
            actor=actor,
            reason=reason,
            selection=selection,
        )


def _parse_selection(event: Mapping[str, Any], *, required: bool) -> dict[str, Any]:
    selection = {name: event[name] for name in ("ids", "filter") if event.get(name) is not None}
    if _parse_flag(event, "all"):
        selection["all"] = True
    if len(selection) > 1 or (required and not selection):
        raise BadRequestError('select dead letters with exactly one of "ids", "filter" and "all": true')
    return selection


def _parse_choice(event: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    value = event.get(name)
    if value not in choices:
        raise BadRequestError(f"{name} must be one of {', '.join(choices)}, not {value!a}")
    return str(value)


def _parse_flag(event: Mapping[str, Any], name: str) -> bool:
    value = event.get(name, False)
    if not isinstance(value, bool):
        raise BadRequestError(f"{name} must be true or false")
    return value


def _parse_limit(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_LIMIT:
        raise BadRequestError(f"limit must be a whole number between 1 and {MAX_LIMIT}")
    return value


def _parse_ids(value: object) -> tuple[UUID, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_IDS:
        raise BadRequestError(f"ids must be a list of 1 to {_MAX_IDS} UUIDs; use filter or all to select more")
    try:
        return tuple(dict.fromkeys(UUID(str(item)) for item in value))
    except ValueError:
        raise BadRequestError('ids must be UUIDs, as returned by "action": "list"') from None


def _parse_condition(name: str, value: object) -> Any:
    text = clean_text(f"filter.{name}", value, max_length=MAX_TEXT_LENGTH)
    if name not in {"older_than", "newer_than"}:
        return text
    try:
        return parse_duration(text)
    except ValueError as error:
        raise BadRequestError(f"filter.{name} {error}") from None
