"""The claim of the current run, for the work itself: extend it, or write its fencing number (C20).

    from grantwire_idempotency import current_claim

    @idempotent(store, key=...)
    def job(event):
        for part in parts(event):
            current_claim().extend(timedelta(minutes=5))
            ...

Threads that the work starts itself do not see the claim, unless they copy the context.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.wiring import duration_rule, require
from grantwire_idempotency.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from grantwire_idempotency._internal.stores.interface import Claim


class HeldClaim:
    """The claim under which the current work runs."""

    def __init__(self, claim: Claim, extend: Callable[[Claim, timedelta], Any]) -> None:
        self._claim = claim
        self._extend = extend

    @property
    def key(self) -> str:
        """The stored key, with the name of the job."""
        return self._claim.key.value

    @property
    def fence(self) -> int:
        """The fencing number: higher than that of every earlier claim on the key.

        Write it with the effect, for example `UPDATE … SET fence = %(fence)s WHERE fence < %(fence)s`. Then a worker
        that was paused past its claim changes nothing after its successor. Raises InternalError if the store draws no
        fencing numbers.
        """
        if self._claim.fence == 0:
            raise InternalError("the store draws no fencing numbers: create a RedisStore with fences=True")
        return self._claim.fence

    def extend(self, ttl: timedelta) -> Any:
        """Let the claim expire `ttl` from now. Inside a coroutine, await the call.

        Raises LeaseLostError if the claim has expired or another run has the key: stop then. Raises RetryableError if
        the store is unavailable; the claim may or may not be extended.
        """
        require(duration_rule("ttl", ttl))
        return self._extend(self._claim, ttl)


_CURRENT: ContextVar[HeldClaim | None] = ContextVar("grantwire_idempotency_claim", default=None)


def current_claim() -> HeldClaim:
    """Return the claim of the current run.

    Raises InternalError outside guarded work, and if the work runs without a claim, because the store was unavailable
    and the fail mode is OPEN, or because the call has no key.
    """
    claim = _CURRENT.get()
    if claim is None:
        raise InternalError("there is no claim: the code does not run in guarded work, or it runs unguarded")
    return claim


def set_current_claim(claim: HeldClaim | None) -> Callable[[], None]:
    """Set the claim of the current run and return a function that restores the previous one."""
    token = _CURRENT.set(claim)
    return lambda: _CURRENT.reset(token)
