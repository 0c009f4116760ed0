"""Parsing and validation of an operator's command to rebuild the read model."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire.errors import BadRequestError
from grantwire.operator_actions import parse_actor_and_reason
from grantwire.settings import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

SOURCES = ("record", "stream")


MAX_SEQUENCE = (1 << 63) - 1


def _parse_sequence(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SEQUENCE:
        raise BadRequestError(f"from_sequence must be a whole number between 1 and {MAX_SEQUENCE}")
    return value


def _parse_budget(value: object) -> timedelta:
    try:
        return parse_duration(str(value))
    except ValueError as error:
        raise BadRequestError(f"budget {error}") from None


_STREAM_FIELDS: dict[str, Callable[[object], Any]] = {"from_sequence": _parse_sequence, "budget": _parse_budget}
_FIELDS = ("source", "dry_run", *_STREAM_FIELDS, "actor", "reason")


@dataclass(frozen=True, slots=True)
class RebuildCommand:
    """A command to rebuild the read model; from the stream, it starts at `from_sequence` and runs at most `budget`.

    A dry run changes nothing and is not recorded, so it needs no actor and no reason.
    """

    source: str
    dry_run: bool = False
    from_sequence: int = 1
    # Below the function's timeout of 15 minutes.
    budget: timedelta = timedelta(minutes=13)
    actor: str = ""
    reason: str = ""

    @classmethod
    def parse(cls, event: Mapping[str, Any]) -> Self:
        """Validate every field of a function's event; BadRequestError names the field and what is allowed."""
        for name in event:
            if name not in _FIELDS:
                raise BadRequestError(f"unknown field {name!a}; allowed: {', '.join(_FIELDS)}")
        source, dry_run = event.get("source"), event.get("dry_run", False)
        if source not in SOURCES:
            raise BadRequestError(f"source must be one of {', '.join(SOURCES)}, not {source!a}")
        if not isinstance(dry_run, bool):
            raise BadRequestError("dry_run must be true or false")
        stream_fields = {name: event[name] for name in _STREAM_FIELDS if name in event}
        if source == "record" and stream_fields:
            raise BadRequestError(f"{', '.join(stream_fields)}: allowed only with source stream")
        parsed = {name: _STREAM_FIELDS[name](value) for name, value in stream_fields.items()}
        actor, reason = ("", "") if dry_run else parse_actor_and_reason(event)
        return cls(source, dry_run, **parsed, actor=actor, reason=reason)
