"""The time that a handler adds to its database call: parsing, validation, rendering, log line and metrics."""

from __future__ import annotations

import os
import time
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from grantwire.wiring.routes.entitlements import ApiRuntime
from tests.bench import callers
from tests.bench.paths.requests import seed
from tests.bench.results import Finding, Section
from tests.bench.rounds import Spread
from tests.bench.subprocesses import run_in_subprocess, use_function_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

    Times = dict[str, tuple[float, float]]

# The client of each path, and the function whose handler it calls.
_PATHS: dict[str, tuple[Callable[..., callers.Call], str]] = {
    "grant": (callers.make_grant_call, "grant"),
    "replay": (callers.make_replay_call, "grant"),
    "query": (callers.make_query_call, "query"),
}
_TARGET_MICROSECONDS = 150
_WARM_UP_CALLS = 50
_METHOD = (
    "One client in one process, with a new process for each round. The database call is timed inside the calls of the"
    " handler. The time that the handler adds is the median of its calls minus the median of the database calls of the"
    " same round. Commits do not wait for the disk here, because that time would hide the difference."
)


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Measure the handler of each path."""
    url = servers.database_without_flush()
    seed(servers, url)
    title = f"handlers, one client: {' · '.join(_PATHS)}, {effort.rounds} rounds"
    with progress.step(title):
        rounds: list[Times] = [
            run_in_subprocess(_round, servers.environ(url), effort.seconds) for _ in range(effort.rounds)
        ]
    return Section(
        "Handlers", findings=[_finding(name, [times[name] for times in rounds]) for name in _PATHS], remarks=[_METHOD]
    )


def _finding(name: str, times: list[tuple[float, float]]) -> Finding:
    handler, call = (median(column) * 1e6 for column in zip(*times, strict=True))
    added = Spread(tuple((total - database) * 1e6 for total, database in times))
    spread = f"{added.median:.0f} µs ({added.low:.0f}-{added.high:.0f})"
    measured = f"{spread}: handler {handler:.0f} µs, database call {call:.0f} µs"
    title = f"{name}, handler above its database call"
    return Finding.at_most(title, measured, added.median, _TARGET_MICROSECONDS, "µs")


def _round(environ: Mapping[str, str], seconds: float) -> Times:
    """Return, for each path, the median seconds of the handler's calls and of the database calls inside them."""
    use_function_environment(environ)
    return {name: _time_calls(client, handler, seconds) for name, (client, handler) in _PATHS.items()}


def _time_calls(client: Callable[..., callers.Call], name: str, seconds: float) -> tuple[float, float]:
    handler, database = _Stopwatch(), _Stopwatch()
    entitlements = _TimedProxy(ApiRuntime.build(os.environ).entitlements, database)
    runtime = SimpleNamespace(entitlements=entitlements, limiter=None)
    call = client(0, handler.around(callers.load_handler(name).with_runtime(runtime)))
    for _ in range(_WARM_UP_CALLS):
        call()
    handler.seconds.clear()
    database.seconds.clear()
    deadline = time.perf_counter() + seconds
    while not handler.seconds or time.perf_counter() < deadline:
        call()
    assert len(handler.seconds) == len(database.seconds), "a handler must make exactly one database call"
    return median(handler.seconds), median(database.seconds)


class _Stopwatch:
    """Times calls."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper of the function that times each call."""

        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds.append(time.perf_counter() - began)

        return timed


class _TimedProxy:
    """Proxy that times every method call of another object."""

    def __init__(self, inner: object, watch: _Stopwatch) -> None:
        self._inner = inner
        self._watch = watch

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return self._watch.around(getattr(self._inner, name))
