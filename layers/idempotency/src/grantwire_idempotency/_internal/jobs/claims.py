"""The claim of the current run, for the work itself: extend it, or write its fencing number (C20).

    from grantwire_idempotency import current_claim

    @idempotent(store, key=...)
    def job(event):
        for part in parts(event):
            current_claim().extend(timedelta(minutes=5))
            ...

In a coroutine it is `await current_async_claim().extend(timedelta(minutes=5))`: a type checker finds a missing `await`.

Threads that the work starts itself do not see the claim, unless they copy the context.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.wiring import duration_rule, require
from grantwire_idempotency.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from datetime import timedelta

    from grantwire_idempotency._internal.stores.interface import Claim


class _Held:
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


class HeldClaim(_Held):
    """The claim under which the current work runs."""

    def extend(self, ttl: timedelta) -> None:
        """Let the claim expire `ttl` from now.

        Raises LeaseLostError if the claim has expired or another run has the key: stop then. Raises RetryableError if
        the store is unavailable; the claim may or may not be extended.
        """
        require(duration_rule("ttl", ttl))
        self._extend(self._claim, ttl)


class AsyncHeldClaim(_Held):
    """The claim under which the current coroutine runs."""

    def __init__(self, claim: Claim, extend: Callable[[Claim, timedelta], Any]) -> None:
        super().__init__(claim, extend)
        self._not_awaited = 0

    def extend(self, ttl: timedelta) -> Coroutine[Any, Any, None]:
        """Return the coroutine that lets the claim expire `ttl` from now: await it. Raises what `HeldClaim` raises.

        If the work ends before it was awaited, the call of the work raises InternalError.
        """
        require(duration_rule("ttl", ttl))
        self._not_awaited += 1
        return self._await_extension(ttl)

    async def _await_extension(self, ttl: timedelta) -> None:
        self._not_awaited -= 1
        await self._extend(self._claim, ttl)

    def require_awaited(self) -> None:
        """Raise InternalError if an extension was not awaited: the claim was shorter than the work thought."""
        if self._not_awaited:
            raise InternalError(
                "the work is done, but it did not await the extension of its claim: write"
                " `await current_async_claim().extend(...)`"
            )


_CURRENT: ContextVar[HeldClaim | AsyncHeldClaim | None] = ContextVar("grantwire_idempotency_claim", default=None)


def current_claim() -> HeldClaim:
    """Return the claim of the current run.

    Raises InternalError outside guarded work, and if the work runs without a claim, because the store was unavailable
    and the fail mode is OPEN, or because the call has no key. Also in a coroutine, whose claim `current_async_claim`
    returns.
    """
    claim = _require_claim()
    if isinstance(claim, AsyncHeldClaim):
        raise InternalError("the work is a coroutine: its claim is current_async_claim()")
    return claim


def current_async_claim() -> AsyncHeldClaim:
    """Return the claim of the current run of a coroutine. Raises InternalError as `current_claim` does."""
    claim = _require_claim()
    if isinstance(claim, HeldClaim):
        raise InternalError("the work is not a coroutine: its claim is current_claim()")
    return claim


def set_current_claim(claim: HeldClaim | AsyncHeldClaim | None) -> Callable[[], None]:
    """Set the claim of the current run and return a function that restores the previous one."""
    token = _CURRENT.set(claim)
    return lambda: _CURRENT.reset(token)


def _require_claim() -> HeldClaim | AsyncHeldClaim:
    claim = _CURRENT.get()
    if claim is None:
        raise InternalError("there is no claim: the code does not run in guarded work, or it runs unguarded")
    return claim
