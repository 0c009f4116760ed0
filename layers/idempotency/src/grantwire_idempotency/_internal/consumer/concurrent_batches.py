"""A batch whose messages are processed at the same time under asyncio, except those that belong together (C30).

Messages with the same key are processed one after the other, in their order: at the same time, all but one of them
would be in progress and return to the queue. So are the messages of a group.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence


async def process_concurrently(
    names: Sequence[Collection[str]], process: Callable[[int], Awaitable[bool]], limit: int
) -> list[bool]:
    """Process each position, at most `limit` at a time, and return whether each one succeeded.

    `names` are the names of what a position belongs to: those that share one are processed one after the other. If the
    task is cancelled, it ends when all that it has started have ended.
    """
    succeeded = [False] * len(names)
    slots = asyncio.Semaphore(limit)

    async def run(chain: Sequence[int]) -> None:
        async with slots:
            for position in chain:
                succeeded[position] = await process(position)

    async with asyncio.TaskGroup() as tasks:
        for chain in make_chains(names):
            tasks.create_task(run(chain))
    return succeeded


def make_chains(names: Sequence[Collection[str]]) -> list[list[int]]:
    """Return the positions, in chains that share no name: each chain, and the list of them, in the order of the input.

    Two positions are in one chain if they share a name, or if a third one shares a name with each of them.
    """
    chains: dict[int, list[int]] = {}
    chain_by_name: dict[str, int] = {}
    for position, own in enumerate(names):
        first, *others = sorted({chain_by_name[name] for name in own if name in chain_by_name}) or [position]
        chain = chains.setdefault(first, [])
        for other in others:
            chain.extend(chains.pop(other))
        if others:
            chain.sort()
            chain_by_name.update({name: first for name, known in chain_by_name.items() if known in others})
        chain.append(position)
        chain_by_name.update(dict.fromkeys(own, first))
    return [chains[first] for first in sorted(chains)]
