"""Building of runtimes, once for each execution environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Generic, TypeVar

from grantwire.errors import ConfigError
from grantwire.observability import configure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

R = TypeVar("R")


class LazyRuntime(Generic[R]):
    """A runtime that is built once: on Lambda in the init phase, elsewhere on first use."""

    def __init__(self, build: Callable[[Mapping[str, str]], R]) -> None:
        self._build = build
        self._runtime: R | None = None
        if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
            self._initialize()

    def _initialize(self) -> None:
        """Configure logging and build the runtime; raise one ConfigError with the problems of both."""
        problems: list[str] = []
        for step in (lambda: configure(os.environ), self.get):
            try:
                step()
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)

    def get(self) -> R:
        """Return the runtime. Raises ConfigError if a setting is invalid."""
        if self._runtime is None:
            self._runtime = self._build(os.environ)
        return self._runtime
