"""Numbers in messages for people."""

from collections.abc import Mapping


def count_of(number: int, singular: str, plural: str = "", *, capped: bool = False) -> str:
    """Return a number with its noun: `1 line`, `2 lines`. `capped` means that there may be more."""
    noun = singular if number == 1 and not capped else plural or f"{singular}s"
    return f"{number} or more {noun}" if capped else f"{number} {noun}"


def counts_of(numbers: Mapping[str, int]) -> str:
    """Return what was counted: `2 not open any more, 1 no copy`."""
    return ", ".join(f"{number} {name}" for name, number in numbers.items())
