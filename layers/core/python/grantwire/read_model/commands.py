"""What an operator asks for: from where to rebuild the read model, and how far. Parsed and checked here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire.errors import BadRequestError
from grantwire.settings import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

SOURCES = ("record", "stream")


def _sequence(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 63:
        raise BadRequestError("from_sequence must be a whole number from 1 on")
    return value


def _budget(value: object) -> timedelta:
    try:
        return parse_duration(str(value))
    except ValueError as error:
        raise BadRequestError(f"budget {error}") from None


_STREAM_ONLY: dict[str, Callable[[object], Any]] = {"from_sequence": _sequence, "budget": _budget}
_FIELDS = ("source", "dry_run", *_STREAM_ONLY)


@dataclass(frozen=True, slots=True)
class RebuildCommand:
    """One call of an operator; a replay of the stream begins at `from_sequence` and goes on for `budget` at most."""

    source: str
    dry_run: bool = False
    from_sequence: int = 1
    # The function has 15 minutes.
    budget: timedelta = timedelta(minutes=13)

    @classmethod
    def parse(cls, event: Mapping[str, Any]) -> Self:
        """Check every field; the error says what to write instead."""
        for name in event:
            if name not in _FIELDS:
                raise BadRequestError(f"unknown field {name!a}; known are {', '.join(_FIELDS)}")
        source, dry_run = event.get("source"), event.get("dry_run", False)
        if source not in SOURCES:
            raise BadRequestError(f"source must be one of {', '.join(SOURCES)}, not {source!a}")
        if not isinstance(dry_run, bool):
            raise BadRequestError("dry_run must be true or false")
        given = {name: event[name] for name in _STREAM_ONLY if name in event}
        if source == "record" and given:
            raise BadRequestError(f"{', '.join(given)}: only for the source stream; the record is one statement")
        return cls(source, dry_run, **{name: _STREAM_ONLY[name](value) for name, value in given.items()})
