"""Clients as Lambda has them: each a process of its own, with its own handler and its own connection."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tests.bench.alone import become_function

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from types import TracebackType
    from typing import Self

    Call = Callable[[], object]

# Time for the last client to have read its order, so that all begin together.
_HEAD_START = 0.05
_PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Run:
    """What a fleet did: how many calls, in how long, and how long each took."""

    calls: int
    seconds: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds


class Fleet:
    """So many clients; `work` names a function, as module:function, that gets a client's number and gives its call."""

    def __init__(self, work: str, count: int, environ: Mapping[str, str]) -> None:
        self._work = work
        self._environ = dict(environ)
        self._members: list[tuple[BaseProcess, Connection]] = []
        self._count = count
        self.calls = 0

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        for number in range(self._count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, self._work, number, self._environ), daemon=True)
            process.start()
            self._members.append((process, ours))
        for _, pipe in self._members:
            self._answer(pipe)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, pipe in self._members:
            if kind is None:
                pipe.send(None)
                process.join(_PATIENCE)
            else:
                process.terminate()

    def rate(self, seconds: float, clients: int | None = None) -> float:
        """Let them call for so long; calls a second."""
        return self.run(seconds, clients).rate

    def once(self) -> float:
        """Let each of them make one call, all at once; how many seconds the longest took."""
        return max(self.run(0.0).latencies)

    def run(self, seconds: float, clients: int | None = None) -> Run:
        """Let all of them, or so many, call for so long, and at least once."""
        members = self._members[:clients]
        start = time.monotonic() + _HEAD_START
        for _, pipe in members:
            pipe.send((start, seconds))
        latencies: list[float] = []
        end = start
        for _, pipe in members:
            ended, theirs = self._answer(pipe)
            end = max(end, ended)
            latencies += theirs
        self.calls += len(latencies)
        return Run(len(latencies), end - start, latencies)

    def _answer(self, pipe: Connection) -> Any:
        if not pipe.poll(_PATIENCE):
            raise RuntimeError(f"a client of {self._work} does not answer")
        answer = pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _serve(pipe: Connection, work: str, number: int, environ: Mapping[str, str]) -> None:
    become_function(environ)
    module, _, function = work.partition(":")
    try:
        call: Call = getattr(import_module(module), function)(number)
        call()  # connects, and prepares its statements
        pipe.send("ready")
        while (order := pipe.recv()) is not None:
            pipe.send(_calls(call, *order))
    except Exception as error:  # noqa: BLE001 - told to whoever waits
        pipe.send(RuntimeError(f"{work}: {error!r}"))


def _calls(call: Call, start: float, seconds: float) -> tuple[float, list[float]]:
    """When it ended, and how long each call took."""
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
