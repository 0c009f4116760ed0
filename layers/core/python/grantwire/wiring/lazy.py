"""Building of runtimes, once for each execution environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from grantwire import aws
from grantwire.errors import ConfigError
from grantwire.observability import configure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

R = TypeVar("R")


class LazyRuntime(Generic[R]):
    """A runtime that is built once: on Lambda in the init phase, elsewhere on first use.

    `before` is another runtime of the same function. In the init phase it is built with this one, so that one error
    names the problems of both.
    """

    def __init__(
        self,
        build: Callable[[Mapping[str, str]], R],
        *,
        before: LazyRuntime[Any] | None = None,
        initialize: bool = True,
    ) -> None:
        self._build = build
        self._runtime: R | None = None
        if initialize and "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
            self._initialize(before)

    def _initialize(self, before: LazyRuntime[Any] | None) -> None:
        """Configure logging and build the runtimes; raise one ConfigError with all problems."""
        aws.configure(os.environ)
        problems: list[str] = []
        for step in (lambda: configure(os.environ), *([before.get] if before else []), self.get):
            try:
                step()
            except ConfigError as error:
                problems += [problem for problem in error.problems if problem not in problems]
        if problems:
            raise ConfigError(problems)

    def get(self) -> R:
        """Return the runtime. Raises ConfigError if a setting is invalid."""
        if self._runtime is None:
            self._runtime = self._build(os.environ)
        return self._runtime
