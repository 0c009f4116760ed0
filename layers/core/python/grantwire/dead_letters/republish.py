"""Publishes copies of dead-letter messages to the stream that they came from (Q2)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from grantwire.dead_letters.advisories import REDRIVE_OF_HEADER
from grantwire.errors import AmbiguousError, RejectedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from grantwire.dead_letters.store import Redrive
    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.publisher import Publisher

_UNCERTAIN = "uncertain: JetStream may have stored the message; still open, redrive it again with the same message id"
_NOT_STORED = "not stored: still open, redrive it again; "
_REFUSED = "refused: JetStream does not accept this message; "


class Republisher:
    """Publishes from synchronous code, on the event loop of the given runner."""

    def __init__(self, nats: NatsConnection, publisher: Publisher, runner: asyncio.Runner) -> None:
        self._nats = nats
        self._publisher = publisher
        self._runner = runner

    def connect(self) -> None:
        """Connect to NATS, before anything is changed; raises RetryableError if it is unavailable."""
        self._runner.run(self._nats.connect())

    def publish(self, redrives: Sequence[Redrive]) -> tuple[dict[UUID, int], dict[str, list[UUID]]]:
        """Publish messages, as `publish_redrives` does."""
        return self._runner.run(publish_redrives(self._publisher, redrives))

    def close(self) -> None:
        """Close the connection."""
        self._runner.run(self._nats.close())


async def publish_redrives(
    publisher: Publisher, redrives: Sequence[Redrive]
) -> tuple[dict[UUID, int], dict[str, list[UUID]]]:
    """Publish messages; return the sequence of each that JetStream has stored, and the ids of the others by reason.

    The payload and all headers except those of NATS are unchanged.
    """
    results = await asyncio.gather(*(_publish(publisher, redrive) for redrive in redrives))
    stored: dict[UUID, int] = {}
    failed: dict[str, list[UUID]] = defaultdict(list)
    for redrive, result in zip(redrives, results, strict=True):
        if isinstance(result, int):
            stored[redrive.dead_letter_id] = result
        else:
            failed[result].append(redrive.dead_letter_id)
    return stored, dict(failed)


async def _publish(publisher: Publisher, redrive: Redrive) -> int | str:
    """Publish one message; return its sequence if JetStream has stored it, now or earlier, or else the reason."""
    headers = {name: value for name, value in redrive.headers.items() if not name.lower().startswith("nats-")}
    headers |= {"Nats-Msg-Id": redrive.redrive_id, REDRIVE_OF_HEADER: str(redrive.dead_letter_id)}
    try:
        return (await publisher.publish(redrive.subject, redrive.payload, headers)).sequence
    except AmbiguousError:
        return _UNCERTAIN
    except RetryableError as error:
        return f"{_NOT_STORED}{error}"
    except RejectedError as error:
        return f"{_REFUSED}{error}"
