"""Undo earlier steps when a later step fails (C9).

    with Compensation() as undo:
        hold = reserve(item)
        undo.on_failure(release, hold)
        charge(customer)

For steps in systems that share no transaction. The undo steps exist only in this process and are lost if it dies. So
each step must be safe to repeat, or a separate cleanup must find its remains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.wiring import logger_rule, require
from grantwire_idempotency.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger


class Compensation:
    """Runs the undo steps in reverse order if the block raises anything, including an interrupt.

    An undo step that fails is logged, and the others still run. The error of the block propagates to the caller.
    """

    def __init__(self, *, logger: LibraryLogger | None = None) -> None:
        require(logger_rule(logger))
        self._logger: LibraryLogger = default_logger if logger is None else logger
        self._steps: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] | None = None

    def on_failure(self, undo: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Register an undo step for the step that was just done. Raises InternalError outside the `with` block."""
        if self._steps is None:
            raise InternalError("on_failure must be called inside the `with` block of its Compensation")
        if not callable(undo):
            raise InternalError("an undo step must be a function")
        self._steps.append((undo, args, kwargs))

    def __enter__(self) -> Self:
        if self._steps is not None:
            raise InternalError("a Compensation can be used by one `with` block at a time")
        self._steps = []
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        steps, self._steps = self._steps or [], None
        if error is None:
            return
        for number, (undo, args, kwargs) in reversed(list(enumerate(steps, 1))):
            try:
                undo(*args, **kwargs)
            except BaseException:
                name = getattr(undo, "__qualname__", type(undo).__name__)
                logger = self._logger
                logger.exception("undo step failed", extra={"step": number, "undo": name})
