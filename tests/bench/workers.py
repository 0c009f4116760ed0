"""What the workers of a fleet do: one invocation as EventBridge makes it, until there is nothing left to do."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], None]

# How long the relay of `serve_outbox` works for.
BUDGET = "BENCH_BUDGET"

_UNTIL_IDLE = {"budget": "5m", "until": "idle"}


def drain_outbox(_number: int) -> Call:
    """Publish what is in the outbox."""
    from functions.relay_outbox.handler import handler  # noqa: PLC0415 - reads the environment

    return lambda: _only({"published"}, handler(_UNTIL_IDLE, None))


def serve_outbox(_number: int) -> Call:
    """Publish what comes, for a whole budget; the first call only connects."""
    from functions.relay_outbox.handler import handler  # noqa: PLC0415 - reads the environment

    events = itertools.chain([_UNTIL_IDLE], itertools.repeat({"budget": os.environ[BUDGET]}))
    # What it has claimed when its time is up it gives back.
    return lambda: _only({"published", "released"}, handler(next(events), None))


def drain_stream(_number: int) -> Call:
    """Record what is in the stream."""
    from functions.bridge_events.handler import handler  # noqa: PLC0415 - reads the environment

    return lambda: _only({"recorded"}, handler(_UNTIL_IDLE, None))


def _only(outcomes: set[str], counts: dict[str, int]) -> None:
    """Nothing else may have become of any: that would be another measurement."""
    assert all(name in outcomes or not count for name, count in counts.items()), counts
