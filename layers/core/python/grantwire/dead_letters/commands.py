"""What an operator asks for: which dead letters, what to do with them, who asks and why. Parsed and checked here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from grantwire.errors import BadRequestError
from grantwire.settings import parse_duration
from grantwire.validation import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta
    from typing import Self

ACTIONS = ("list", "redrive", "discard")
# What each kind of dead letter can be chosen by.
FILTERS = {
    "outbox": ("event_type", "user_id", "error", "older_than", "newer_than"),
    "notification": ("event_type", "user_id", "error", "older_than", "newer_than"),
    "nats": ("event_type", "error", "older_than", "newer_than"),
}
LARGEST = 100_000
_MOST_IDS = 1000
_FIELDS = ("action", "kind", "ids", "filter", "all", "dry_run", "force", "limit", "actor", "reason")
_LONGEST_TEXT = 500


@dataclass(frozen=True, slots=True)
class Filter:
    """Every part that is given must hold; `error` is a part of the error's text."""

    event_type: str | None = None
    user_id: str | None = None
    error: str | None = None
    older_than: timedelta | None = None
    newer_than: timedelta | None = None

    @classmethod
    def parse(cls, kind: str, given: object) -> Self:
        """Check the parts; durations are written `2h`, `7d`."""
        if not isinstance(given, dict) or not given:
            raise BadRequestError(f"filter must be an object with some of {', '.join(FILTERS[kind])}")
        for name in given:
            if name not in FILTERS[kind]:
                raise BadRequestError(f"{kind} cannot be filtered by {name!a}; use {', '.join(FILTERS[kind])}")
        return cls(**{name: _filter_value(name, value) for name, value in given.items()})


@dataclass(frozen=True, slots=True)
class DeadLetterCommand:
    """One call of an operator."""

    action: str
    kind: str
    ids: tuple[UUID, ...] | None = None
    filter: Filter = field(default_factory=Filter)
    dry_run: bool = False
    force: bool = False
    limit: int = LARGEST
    actor: str = ""
    reason: str = ""
    selection: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, event: Mapping[str, Any]) -> Self:
        """Check every field; the error says what to write instead."""
        for name in event:
            if name not in _FIELDS:
                raise BadRequestError(f"unknown field {name!a}; known are {', '.join(_FIELDS)}")
        action = _choice(event, "action", ACTIONS)
        kind = _choice(event, "kind", tuple(FILTERS))
        selection = _selection(event, required=action != "list")
        return cls(
            action=action,
            kind=kind,
            ids=_ids(selection["ids"]) if "ids" in selection else None,
            filter=Filter.parse(kind, selection["filter"]) if "filter" in selection else Filter(),
            dry_run=_flag(event, "dry_run"),
            force=_flag(event, "force"),
            limit=_limit(event.get("limit", 100 if action == "list" else LARGEST)),
            actor="" if action == "list" else _text(event, "actor", "who asks for it"),
            reason="" if action == "list" else _text(event, "reason", "why it is done"),
            selection=selection,
        )


def _selection(event: Mapping[str, Any], *, required: bool) -> dict[str, Any]:
    given = {name: event[name] for name in ("ids", "filter") if event.get(name) is not None}
    if _flag(event, "all"):
        given["all"] = True
    if len(given) > 1 or (required and not given):
        raise BadRequestError('choose dead letters by exactly one of "ids", "filter" and "all": true')
    return given


def _choice(event: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    value = event.get(name)
    if value not in choices:
        raise BadRequestError(f"{name} must be one of {', '.join(choices)}, not {value!a}")
    return str(value)


def _flag(event: Mapping[str, Any], name: str) -> bool:
    value = event.get(name, False)
    if not isinstance(value, bool):
        raise BadRequestError(f"{name} must be true or false")
    return value


def _limit(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise BadRequestError(f"limit must be a whole number between 1 and {LARGEST}")
    return value


def _ids(value: object) -> tuple[UUID, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MOST_IDS:
        raise BadRequestError(f"ids must be a list of 1 to {_MOST_IDS} UUIDs; for more use a filter or all")
    try:
        return tuple(dict.fromkeys(UUID(str(one)) for one in value))
    except ValueError:
        raise BadRequestError('ids must be UUIDs, as "action": "list" shows them') from None


def _text(event: Mapping[str, Any], name: str, what: str) -> str:
    if name not in event:
        raise BadRequestError(f"{name} is missing: say {what}; it is kept")
    return clean_text(name, event[name], longest=_LONGEST_TEXT)


def _filter_value(name: str, value: object) -> Any:
    text = clean_text(f"filter.{name}", value, longest=_LONGEST_TEXT)
    if name not in {"older_than", "newer_than"}:
        return text
    try:
        return parse_duration(text)
    except ValueError as error:
        raise BadRequestError(f"filter.{name} {error}") from None
