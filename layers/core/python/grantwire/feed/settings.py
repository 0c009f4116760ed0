"""Settings of the change feed."""

from __future__ import annotations

from dataclasses import dataclass

from grantwire.settings import integer, setting


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """How many requests may wait for a change at the same time."""

    # Each of them holds an execution environment and a database connection for up to 20 s.
    max_waiting: int = setting("CHANGES_MAX_WAITING", integer(low=1, high=1000), default="20")
    # So that one client cannot hold all places.
    max_waiting_per_client: int = setting("CHANGES_MAX_WAITING_PER_CLIENT", integer(low=1, high=1000), default="5")
