"""The library's logger: standard `logging` with fields in `extra`, which any formatter can print.

The library configures nothing: level, handlers and format belong to the application. Parts that log take another logger
as `logger`, such as a Powertools Logger.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger("grantwire_idempotency")


class LibraryLogger(Protocol):
    """The methods of a logger that the library calls: those of `logging.Logger` and of a Powertools Logger."""

    def debug(self, msg: object, *, extra: Mapping[str, object] | None = None) -> Any:
        """Log at DEBUG."""

    def info(self, msg: object, *, extra: Mapping[str, object] | None = None) -> Any:
        """Log at INFO."""

    def warning(self, msg: object, *, exc_info: Any = None, extra: Mapping[str, object] | None = None) -> Any:
        """Log at WARNING."""

    def error(self, msg: object, *, exc_info: Any = None, extra: Mapping[str, object] | None = None) -> Any:
        """Log at ERROR."""

    def exception(self, msg: object, *, extra: Mapping[str, object] | None = None) -> Any:
        """Log at ERROR with the current exception."""

    def log(self, level: int, msg: object, *, extra: Mapping[str, object] | None = None) -> Any:
        """Log at any level."""


def key_fingerprint(key: str) -> str:
    """Return the start of the key's hash: enough to recognise the key in logs, not enough to recover it."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]
