"""Work in a process of its own, as a worker does it."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_PATIENCE = 600.0


def alone(work: Callable[..., Coroutine[Any, Any, float]], *arguments: Any) -> float:
    """Run it in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        return executor.submit(_run, work, *arguments).result(_PATIENCE)


def _run(work: Callable[..., Coroutine[Any, Any, float]], *arguments: Any) -> float:
    return asyncio.run(work(*arguments))
