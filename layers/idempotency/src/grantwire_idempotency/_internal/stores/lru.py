"""A mapping that forgets its least recently used items."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")


class LruMapping(Generic[V]):
    """Keeps the `capacity` most recently used items. Not thread-safe: its user has a lock."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: OrderedDict[str, V] = OrderedDict()

    def get(self, name: str) -> V | None:
        """Return the item, which becomes the most recently used one."""
        if name in self._items:
            self._items.move_to_end(name)
        return self._items.get(name)

    def put(self, name: str, item: V) -> None:
        """Add or replace an item."""
        self._items[name] = item
        self._items.move_to_end(name)
        if len(self._items) > self._capacity:
            self._items.popitem(last=False)

    def pop(self, name: str) -> None:
        """Delete the item, if it exists."""
        self._items.pop(name, None)

    def items(self) -> list[tuple[str, V]]:
        """Return all items."""
        return list(self._items.items())
