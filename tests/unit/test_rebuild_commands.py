"""P2: validation of the command to rebuild the read model."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from grantwire.errors import BadRequestError
from grantwire.read_model.commands import RebuildCommand

OPERATOR: dict[str, Any] = {"actor": "ann", "reason": "damaged"}


def test_command_has_defaults() -> None:
    """From the first message, within the function's timeout, and not as a dry run."""
    assert RebuildCommand.parse({"source": "record", **OPERATOR}) == RebuildCommand("record", **OPERATOR)
    defaults = RebuildCommand("stream", False, 1, timedelta(minutes=13), "ann", "damaged")
    assert RebuildCommand.parse({"source": "stream", **OPERATOR}) == defaults
    all_fields = {"source": "stream", "dry_run": True, "from_sequence": 7, "budget": "90s"}
    assert RebuildCommand.parse(all_fields) == RebuildCommand("stream", True, 7, timedelta(seconds=90))
    assert RebuildCommand.parse(all_fields | OPERATOR).dry_run  # allowed, but a dry run is not recorded


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({}, "source must be one of record, stream, not None"),
        ({"source": "backup"}, "source must be one of record, stream, not 'backup'"),
        ({"source": ["record"]}, "source must be one of record, stream"),
        ({"source": "record", "dry_run": "yes"}, "dry_run must be true or false"),
        ({"source": "record", "dry_run": None}, "dry_run must be true or false"),
        ({"source": "record", "from_sequence": 1}, "from_sequence: allowed only with source stream"),
        ({"source": "record", "budget": "1s"}, "budget: allowed only with source stream"),
        ({"source": "stream", "from_sequence": 0}, "from_sequence must be a whole number between 1 and"),
        ({"source": "stream", "from_sequence": "7"}, "from_sequence must be a whole number between 1 and"),
        ({"source": "stream", "from_sequence": True}, "from_sequence must be a whole number between 1 and"),
        ({"source": "stream", "from_sequence": 1 << 63}, "from_sequence must be a whole number between 1 and"),
        ({"source": "stream", "budget": "13 minutes"}, "budget must be a duration such as"),
        ({"source": "stream", "budget": 780}, "budget must be a duration such as"),
        ({"source": "record", "reason": "damaged"}, "actor is missing: state who gives the command"),
        ({"source": "record", "actor": "ann"}, "reason is missing: state why"),
        ({"source": "record", "actor": "ann", "reason": ""}, "reason must not be empty"),
        ({"source": "stream", "until": "idle"}, "unknown field 'until'; allowed: source, dry_run"),
    ],
)
def test_invalid_command_is_refused_with_reason(event: dict[str, Any], message: str) -> None:
    """Before anything is read or changed."""
    with pytest.raises(BadRequestError) as error:
        RebuildCommand.parse(event)
    assert message in str(error.value)
