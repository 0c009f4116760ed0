"""When a runtime is built."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Generic, TypeVar

from grantwire.errors import ConfigError
from grantwire.observability import configure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

R = TypeVar("R")


class LazyRuntime(Generic[R]):
    """A runtime that is built once: in the init phase on Lambda, with its logs; elsewhere when it is first used."""

    def __init__(self, build: Callable[[Mapping[str, str]], R]) -> None:
        self._build = build
        self._built: R | None = None
        if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
            self._start()

    def _start(self) -> None:
        """Configure the logs and build the runtime, or raise one ConfigError with the problems of both."""
        problems: list[str] = []
        for step in (lambda: configure(os.environ), self.get):
            try:
                step()
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)

    def get(self) -> R:
        """Return the runtime, or raise ConfigError."""
        if self._built is None:
            self._built = self._build(os.environ)
        return self._built
