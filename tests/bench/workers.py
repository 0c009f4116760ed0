"""Calls that the workers of a fleet make: each is one invocation as EventBridge makes it, until the worker is idle.

The section that measures a worker checks the results in the database and in the stream.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from tests.bench.callers import load_handler

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], object]

# Environment variable with the budget of the relay of `make_serve_outbox_call`.
BUDGET = "BENCH_BUDGET"

_UNTIL_IDLE = {"budget": "5m", "until": "idle"}


def make_drain_outbox_call(_number: int) -> Call:
    """Return a call that publishes every event of the outbox."""
    handler = load_handler("relay_outbox")
    return lambda: handler(_UNTIL_IDLE, None)


def make_serve_outbox_call(_number: int) -> Call:
    """Return a call that publishes new events until the budget ends. The first call only connects."""
    handler = load_handler("relay_outbox")
    events = itertools.chain([_UNTIL_IDLE], itertools.repeat({"budget": os.environ[BUDGET]}))
    return lambda: handler(next(events), None)


def make_drain_stream_call(_number: int) -> Call:
    """Return a call that records every message of the stream."""
    handler = load_handler("bridge_events")
    return lambda: handler(_UNTIL_IDLE, None)


def make_sweep_call(_number: int) -> Call:
    """Return a call that deletes expired rows. The first call does nothing, so that the second finds every row."""
    handler = load_handler("sweep_retention")
    turns = itertools.count()
    return lambda: handler(_UNTIL_IDLE, None) if next(turns) else None


def make_expiry_call(_number: int) -> Call:
    """Return a call that records every end that is due. The first call does nothing, so that the second finds them."""
    handler = load_handler("expire_entitlements")
    turns = itertools.count()
    return lambda: handler(_UNTIL_IDLE, None) if next(turns) else None
