"""Clients that run as functions do on Lambda: each in its own process, with its own handler and connection."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tests.bench.subprocesses import use_function_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from types import TracebackType
    from typing import Self

    Call = Callable[[], object]

# Every client must have received its instruction before the common start.
_HEAD_START_SECONDS = 0.05
_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Run:
    """Result of a run: the number of calls, the duration, and the latency of each call."""

    calls: int
    seconds: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.calls / self.seconds


class Fleet:
    """Group of `count` client processes.

    `factory` names a function as module:function. It gets the number of a client and returns the call that the client
    makes again and again.
    """

    def __init__(self, factory: str, count: int, environ: Mapping[str, str]) -> None:
        self._factory = factory
        self._environ = dict(environ)
        self._members: list[tuple[BaseProcess, Connection]] = []
        self._count = count
        self.calls = 0

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        for number in range(self._count):
            pipe, remote = context.Pipe()
            process = context.Process(target=_serve, args=(remote, self._factory, number, self._environ), daemon=True)
            process.start()
            self._members.append((process, pipe))
        for _, pipe in self._members:
            self._receive(pipe)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, pipe in self._members:
            if kind is None:
                pipe.send(None)
                process.join(_TIMEOUT_SECONDS)
            else:
                process.terminate()

    def measure_rate(self, seconds: float, clients: int | None = None) -> float:
        """Run for `seconds` and return the calls per second."""
        return self.run(seconds, clients).rate

    def run_once(self) -> float:
        """Let all clients make one call at the same time, and return the seconds of the longest call."""
        return max(self.run(0.0).latencies)

    def run(self, seconds: float, clients: int | None = None) -> Run:
        """Let `clients` clients, by default all, call for `seconds`, and each at least once."""
        members = self._members[:clients]
        start = time.monotonic() + _HEAD_START_SECONDS
        for _, pipe in members:
            pipe.send((start, seconds))
        latencies: list[float] = []
        end = start
        for _, pipe in members:
            ended, measured = self._receive(pipe)
            end = max(end, ended)
            latencies += measured
        self.calls += len(latencies)
        return Run(len(latencies), end - start, latencies)

    def _receive(self, pipe: Connection) -> Any:
        if not pipe.poll(_TIMEOUT_SECONDS):
            raise RuntimeError(f"a client of {self._factory} does not respond")
        result = pipe.recv()
        if isinstance(result, BaseException):
            raise result
        return result


def _serve(pipe: Connection, factory: str, number: int, environ: Mapping[str, str]) -> None:
    use_function_environment(environ)
    module, _, function = factory.partition(":")
    try:
        call: Call = getattr(import_module(module), function)(number)
        call()  # connects and prepares statements
        pipe.send("ready")
        while (instruction := pipe.recv()) is not None:
            pipe.send(_repeat(call, *instruction))
    except Exception as error:  # noqa: BLE001 - raised again by the process that waits
        pipe.send(RuntimeError(f"{factory}: {error!r}"))


def _repeat(call: Call, start: float, seconds: float) -> tuple[float, list[float]]:
    """Repeat the call for `seconds`, and return the end time and the latency of each call."""
    latencies: list[float] = []
    clock = time.monotonic
    time.sleep(max(0.0, start - clock()))
    deadline = start + seconds
    ended = clock()
    while not latencies or ended < deadline:
        began = ended
        call()
        ended = clock()
        latencies.append(ended - began)
    return ended, latencies
