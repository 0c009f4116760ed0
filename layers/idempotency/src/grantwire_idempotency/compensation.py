"""Undo what was done when a later step fails (C9).

    with Compensation() as undo:
        hold = reserve(item)
        undo.on_failure(release, hold)
        charge(customer)

For steps in systems that share no transaction. It lives in this process: if that dies in the middle nobody undoes
anything, so each step has to be safe to repeat, or to be found by whoever cleans up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grantwire_idempotency.errors import InternalError
from grantwire_idempotency.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self


class Compensation:
    """Runs the undo steps in reverse order if the block fails, by any error or interrupt; on success runs none.

    An undo step that fails is logged, and the rest still run. The block's own error goes on to the caller.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] | None = None

    def on_failure(self, undo: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Remember how to undo what was just done; InternalError outside the block, where nobody would run it."""
        if self._steps is None:
            raise InternalError("on_failure works inside the `with` block of its Compensation")
        if not callable(undo):
            raise InternalError("an undo step must be a function")
        self._steps.append((undo, args, kwargs))

    def __enter__(self) -> Self:
        if self._steps is not None:
            raise InternalError("a Compensation is for one block at a time")
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
                logger.exception("undo step failed", extra={"step": number, "undo": name})
