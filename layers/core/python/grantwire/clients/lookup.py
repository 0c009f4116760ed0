"""Look-ups of clients that unknown ids cannot flood (G6).

A look-up that finds no client returns the ids of all clients instead. For one second after it, an id that is not among
them is refused without a look-up. So a flood of invented ids costs one look-up a second in each execution environment,
and a registered client is looked up as always. If there are too many clients to list, every id is looked up.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from grantwire.errors import UnauthenticatedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire.clients.store import Client, Clients

_SECONDS_BETWEEN_MISSES = 1.0


class LimitedLookup:
    """Reads clients for the authorizer of one execution environment; `clock` returns seconds."""

    def __init__(self, clients: Clients, clock: Callable[[], float] = time.time) -> None:
        self._clients = clients
        self._clock = clock
        self._missed_at = -math.inf
        self._known_ids: frozenset[str] = frozenset()

    def find(self, client_id: str) -> Client | None:
        """Return the client, or None if there is no such client.

        Raise UnauthenticatedError if the id is unknown and was not looked up.
        """
        now = self._clock()
        if 0 <= now - self._missed_at < _SECONDS_BETWEEN_MISSES and client_id not in self._known_ids:
            # API Gateway responds with 401 to this text of an authorizer's error, and does not cache it.
            raise UnauthenticatedError("Unauthorized")
        client, known_ids = self._clients.find_or_list_ids(client_id)
        if client is None and known_ids is not None:
            self._missed_at, self._known_ids = now, known_ids
        return client

    def record_use(self, client_id: str) -> None:
        """Update the client's last use, at most once a minute."""
        self._clients.record_use(client_id)
