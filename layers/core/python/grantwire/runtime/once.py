"""When a runtime is built."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

R = TypeVar("R")


class Once(Generic[R]):
    """A runtime that is built once: now on Lambda, at the first `get` elsewhere."""

    def __init__(self, build: Callable[[Mapping[str, str]], R]) -> None:
        self._build = build
        self._built: R | None = None
        if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
            self.get()

    def get(self) -> R:
        """The runtime, or ConfigError."""
        if self._built is None:
            self._built = self._build(os.environ)
        return self._built
