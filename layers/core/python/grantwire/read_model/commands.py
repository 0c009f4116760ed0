"""Parsing and validation of a command to rebuild the read model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire.errors import BadRequestError
from grantwire.validation import refuse_unknown_fields

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

SOURCES = ("record", "stream")
MAX_SEQUENCE = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RebuildCommand:
    """A command to rebuild the read model; from the stream, it starts at the message `from_sequence`."""

    source: str = "record"
    from_sequence: int = 1

    @classmethod
    def parse(cls, arguments: Mapping[str, Any]) -> Self:
        """Validate every argument; BadRequestError names it and what is allowed."""
        refuse_unknown_fields(arguments, ("source", "from_sequence", "actor", "reason"))
        source, first = arguments.get("source", "record"), arguments.get("from_sequence", 1)
        if source not in SOURCES:
            raise BadRequestError(f"source must be one of {', '.join(SOURCES)}, not {source!a}")
        if source == "record" and "from_sequence" in arguments:
            raise BadRequestError("from_sequence: allowed only with source stream")
        if isinstance(first, bool) or not isinstance(first, int) or not 1 <= first <= MAX_SEQUENCE:
            raise BadRequestError(f"from_sequence must be a whole number between 1 and {MAX_SEQUENCE}")
        return cls(source, first)
