"""What the workers of a fleet do: one invocation as EventBridge makes it, until there is nothing left to do.

What became of the work is checked in the database and in the stream, by whoever measures.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from tests.bench.callers import handler_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], object]

# How long the relay of `serve_outbox` works for.
BUDGET = "BENCH_BUDGET"

_UNTIL_IDLE = {"budget": "5m", "until": "idle"}


def drain_outbox(_number: int) -> Call:
    """Publish what is in the outbox."""
    handler = handler_of("relay_outbox")
    return lambda: handler(_UNTIL_IDLE, None)


def serve_outbox(_number: int) -> Call:
    """Publish what comes, for a whole budget; the first call only connects."""
    handler = handler_of("relay_outbox")
    events = itertools.chain([_UNTIL_IDLE], itertools.repeat({"budget": os.environ[BUDGET]}))
    return lambda: handler(next(events), None)


def drain_stream(_number: int) -> Call:
    """Record what is in the stream."""
    handler = handler_of("bridge_events")
    return lambda: handler(_UNTIL_IDLE, None)


def sweep(_number: int) -> Call:
    """Delete what is past its time; the first call deletes nothing, so that all of it is left for the second."""
    handler = handler_of("sweep_retention")
    turns = itertools.count()
    return lambda: handler(_UNTIL_IDLE, None) if next(turns) else None
