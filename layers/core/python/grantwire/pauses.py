"""How long a worker waits for a server that is out of reach."""

from __future__ import annotations

_SHORTEST = 0.05
_LONGEST = 1.0


class Pause:
    """A wait in seconds that grows with every use, from short enough for a hiccup to once a second."""

    def __init__(self) -> None:
        self._next = _SHORTEST

    def next(self) -> float:
        """How long to wait this time."""
        now, self._next = self._next, min(_LONGEST, self._next * 2)
        return now
