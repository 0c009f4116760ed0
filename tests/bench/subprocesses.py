"""Runs work in its own process, as each function has one on Lambda."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TIMEOUT_SECONDS = 600.0


def run_in_subprocess(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, or run a coroutine function, in a new process and return its result."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        return executor.submit(_run, work, *arguments).result(_TIMEOUT_SECONDS)


def use_function_environment(environ: Mapping[str, str]) -> None:
    """Give this process the environment of a function, and send its standard output to the null device.

    Log lines are still rendered and written, because a caller waits for that too.
    """
    os.environ.update(environ)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _run(work: Callable[..., Any], *arguments: Any) -> Any:
    result = work(*arguments)
    return asyncio.run(result) if inspect.iscoroutine(result) else result
