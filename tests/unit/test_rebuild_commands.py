"""P2: validation of the command to rebuild the read model."""

from __future__ import annotations

from typing import Any

import pytest

from grantwire.errors import BadRequestError
from grantwire.operations.commands import REBUILD, VERIFY, OperatorCommand
from grantwire.read_model.commands import RebuildCommand

OPERATOR: dict[str, Any] = {"actor": "ann", "reason": "damaged"}


def parse(**arguments: Any) -> RebuildCommand:
    """Return the parsed arguments of a request with actor and reason."""
    return OperatorCommand.parse(REBUILD, OPERATOR | arguments, "a test").rebuild()


def test_command_has_defaults() -> None:
    """From the system of record; from the stream, from its first message."""
    assert parse() == RebuildCommand("record", 1)
    assert parse(source="stream") == RebuildCommand("stream", 1)
    assert parse(source="stream", from_sequence=7) == RebuildCommand("stream", 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "backup"}, "source must be one of record, stream, not 'backup'"),
        ({"source": ["record"]}, "source must be one of record, stream"),
        ({"source": None}, "source must be one of record, stream, not None"),
        ({"from_sequence": 1}, "from_sequence: allowed only with source stream"),
        ({"source": "stream", "from_sequence": 0}, "from_sequence must be a whole number between 1 and"),
        ({"source": "stream", "from_sequence": "7"}, "from_sequence must be a whole number between 1 and"),
        ({"source": "stream", "from_sequence": True}, "from_sequence must be a whole number between 1 and"),
        ({"source": "stream", "from_sequence": 1 << 63}, "from_sequence must be a whole number between 1 and"),
        ({"reason": ""}, "reason must not be empty"),
        ({"source": "stream", "until": "idle"}, "unknown field 'until'; allowed: source, from_sequence, actor, reason"),
    ],
)
def test_invalid_command_is_refused_with_reason(arguments: dict[str, Any], message: str) -> None:
    """Before anything is read or changed."""
    with pytest.raises(BadRequestError) as error:
        parse(**arguments)
    assert message in str(error.value)


def test_verification_has_no_arguments() -> None:
    """It always compares with the system of record."""
    with pytest.raises(BadRequestError, match="unknown field 'source'; allowed: actor, reason"):
        OperatorCommand.parse(VERIFY, OPERATOR | {"source": "stream"}, "a test")
