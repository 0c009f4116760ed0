"""Numbers in messages for people."""

from __future__ import annotations


def count_of(number: int, singular: str, plural: str = "", *, capped: bool = False) -> str:
    """Return a number with its noun: `1 row`, `2 rows`. `capped` means that there may be more."""
    noun = singular if number == 1 and not capped else plural or f"{singular}s"
    return f"{number} or more {noun}" if capped else f"{number} {noun}"
