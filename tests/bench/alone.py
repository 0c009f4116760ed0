"""Work in a process of its own, as a function has it on Lambda."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PATIENCE = 600.0


def alone(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run it in a process of its own, and its coroutine too if it makes one."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        return executor.submit(_run, work, *arguments).result(_PATIENCE)


def become_function(environ: Mapping[str, str]) -> None:
    """Give this process a function's environment.

    Its log lines go to the null device: they are made and written, as a caller pays for, and read by no one.
    """
    os.environ.update(environ)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _run(work: Callable[..., Any], *arguments: Any) -> Any:
    result = work(*arguments)
    return asyncio.run(result) if inspect.iscoroutine(result) else result
