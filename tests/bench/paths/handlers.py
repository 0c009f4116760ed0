"""What a handler adds to its database call: parsing, validation, rendering, and the request's log line and metrics."""

from __future__ import annotations

import os
import time
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from grantwire.runtime.api import ApiRuntime
from tests.bench import callers
from tests.bench.alone import alone, become_function
from tests.bench.paths.requests import seed
from tests.bench.results import Finding, Section
from tests.bench.rounds import Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

    Times = dict[str, tuple[float, float]]

# What each path's client does, and whose handler it calls.
_PATHS: dict[str, tuple[Callable[..., callers.Call], str]] = {
    "grant": (callers.grant, "grant"),
    "replay": (callers.replay, "grant"),
    "query": (callers.query, "query"),
}
_MICROSECONDS = 150
_WARM_UP = 50
_HOW = (
    "One client in one process, a new process for each round. The runtime's call of the database is timed inside the"
    " handler's own calls: what the handler adds is the median of its calls minus the median of the database call in"
    " the same round. A commit does not wait for the disk here: its time would only hide the difference."
)


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """One finding for each path."""
    url = servers.database_without_flush()
    seed(servers, url)
    title = f"handlers, one client: {' · '.join(_PATHS)}, {effort.rounds} rounds"
    with progress.step(title):
        rounds: list[Times] = [alone(_round, servers.environ(url), effort.seconds) for _ in range(effort.rounds)]
    return Section(
        "Handlers", findings=[_finding(name, [times[name] for times in rounds]) for name in _PATHS], remarks=[_HOW]
    )


def _finding(name: str, times: list[tuple[float, float]]) -> Finding:
    handler, call = (median(column) * 1e6 for column in zip(*times, strict=True))
    added = Spread(tuple((whole - part) * 1e6 for whole, part in times))
    measured = f"{added.median:.0f} µs ({added.low:.0f}-{added.high:.0f}), {handler:.0f} µs against {call:.0f}"
    return Finding.at_most(f"{name}, handler above its database call", measured, added.median, _MICROSECONDS, "µs")


def _round(environ: Mapping[str, str], seconds: float) -> Times:
    """Seconds of a handler's call and of the database call within it, the medians of each path."""
    become_function(environ)
    return {name: _timed(client, handler, seconds) for name, (client, handler) in _PATHS.items()}


def _timed(client: Callable[..., callers.Call], name: str, seconds: float) -> tuple[float, float]:
    handler, database = _Stopwatch(), _Stopwatch()
    runtime = SimpleNamespace(entitlements=_Timed(ApiRuntime.build(os.environ).entitlements, database))
    call = client(0, handler.around(callers.handler_of(name).with_runtime(runtime)))
    for _ in range(_WARM_UP):
        call()
    handler.seconds.clear()
    database.seconds.clear()
    deadline = time.perf_counter() + seconds
    while not handler.seconds or time.perf_counter() < deadline:
        call()
    assert len(handler.seconds) == len(database.seconds), "a handler makes one database call"
    return median(handler.seconds), median(database.seconds)


class _Stopwatch:
    """Times calls."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, with each of its calls timed."""

        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds.append(time.perf_counter() - began)

        return timed


class _Timed:
    """Times every method of another object, whatever their names are."""

    def __init__(self, inner: object, watch: _Stopwatch) -> None:
        self._inner = inner
        self._watch = watch

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return self._watch.around(getattr(self._inner, name))
