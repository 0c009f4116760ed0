"""Batches of lines that can be in flight at the same time without changing the order of one entitlement's lines.

A batch has each entitlement at most once. A batch is sent only when no batch in flight has one of its entitlements.
So the lines of an entitlement take effect in the order of the file, whatever is repeated after a fault.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_ITEMS = 100
MAX_BYTES = 250 * 1024  # of the 256 KiB that the API accepts, with room for the rest of the body


@dataclass
class Batch:
    """Lines that are sent together."""

    lines: list[int] = field(default_factory=list)
    items: list[dict[str, Any]] = field(default_factory=list)
    entitlements: set[tuple[str, str]] = field(default_factory=set)
    size: int = 0

    def fits(self, entitlement: tuple[str, str], size: int) -> bool:
        """Return whether another line can be added."""
        return len(self.items) < MAX_ITEMS and self.size + size <= MAX_BYTES and entitlement not in self.entitlements

    def add(self, line: int, item: dict[str, Any], entitlement: tuple[str, str], size: int) -> None:
        """Add a line."""
        self.lines.append(line)
        self.items.append(item)
        self.entitlements.add(entitlement)
        self.size += size


def make_batches(items: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[Batch]:
    """Yield the lines in batches, in the order of the file."""
    batch = Batch()
    for line, item in items:
        entitlement = (item["user_id"], item["stock_keeping_unit"])
        size = len(json.dumps(item, ensure_ascii=False).encode()) + 1
        if not batch.fits(entitlement, size):
            yield batch
            batch = Batch()
        batch.add(line, item, entitlement, size)
    if batch.items:
        yield batch
