"""P2: what an operator may ask a rebuild for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from grantwire.errors import BadRequestError
from grantwire.read_model.commands import RebuildCommand


def test_an_order_is_read_with_its_defaults() -> None:
    """From the beginning, within the function's time, and really."""
    assert RebuildCommand.parse({"source": "record"}) == RebuildCommand("record", dry_run=False)
    assert RebuildCommand.parse({"source": "stream"}) == RebuildCommand("stream", False, 1, timedelta(minutes=13))
    everything = {"source": "stream", "dry_run": True, "from_sequence": 7, "budget": "90s"}
    assert RebuildCommand.parse(everything) == RebuildCommand("stream", True, 7, timedelta(seconds=90))


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({}, "source must be one of record, stream, not None"),
        ({"source": "backup"}, "source must be one of record, stream, not 'backup'"),
        ({"source": ["record"]}, "source must be one of record, stream"),
        ({"source": "record", "dry_run": "yes"}, "dry_run must be true or false"),
        ({"source": "record", "dry_run": None}, "dry_run must be true or false"),
        ({"source": "record", "from_sequence": 1}, "from_sequence: only for the source stream"),
        ({"source": "record", "budget": "1s"}, "budget: only for the source stream"),
        ({"source": "stream", "from_sequence": 0}, "from_sequence must be a whole number from 1 on"),
        ({"source": "stream", "from_sequence": "7"}, "from_sequence must be a whole number from 1 on"),
        ({"source": "stream", "from_sequence": True}, "from_sequence must be a whole number from 1 on"),
        ({"source": "stream", "from_sequence": 1 << 63}, "from_sequence must be a whole number from 1 on"),
        ({"source": "stream", "budget": "13 minutes"}, "budget must be a duration such as"),
        ({"source": "stream", "budget": 780}, "budget must be a duration such as"),
        ({"source": "stream", "until": "idle"}, "unknown field 'until'; known are source, dry_run"),
    ],
)
def test_a_bad_order_is_refused_with_what_to_write(event: dict[str, Any], says: str) -> None:
    """Before anything is looked at."""
    with pytest.raises(BadRequestError) as error:
        RebuildCommand.parse(event)
    assert says in str(error.value)
