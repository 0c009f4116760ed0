"""Sends copies of messages back to the stream that they came from (Q2)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from grantwire.dead_letters.advisories import REDRIVE_OF
from grantwire.errors import AmbiguousError, RejectedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from grantwire.dead_letters.store import Redrive
    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.publisher import Publisher

_UNCERTAIN = "uncertain: not known whether it was stored; still open, redrive it again, its id stays the same"
_NOT_STORED = "not stored: still open, redrive it again; "
_NEVER = "refused: JetStream will not take this message; "


class Republisher:
    """The connection to NATS, on a loop of the runner's."""

    def __init__(self, nats: NatsConnection, publisher: Publisher, runner: asyncio.Runner) -> None:
        self._nats = nats
        self._publisher = publisher
        self._runner = runner

    def connect(self) -> None:
        """Make sure of NATS before anything is changed; RetryableError if it is out of reach."""
        self._runner.run(self._nats.connect())

    def publish(self, redrives: Sequence[Redrive]) -> tuple[list[UUID], dict[str, list[UUID]]]:
        """Which dead letters JetStream has stored again, and which not, by reason. Bytes and own headers unchanged."""
        return self._runner.run(self._publish(redrives))

    def close(self) -> None:
        """Drop the connection."""
        self._runner.run(self._nats.close())

    async def _publish(self, redrives: Sequence[Redrive]) -> tuple[list[UUID], dict[str, list[UUID]]]:
        results = await asyncio.gather(*map(self._publish_one, redrives))
        stored: list[UUID] = []
        failed: dict[str, list[UUID]] = defaultdict(list)
        for redrive, failure in zip(redrives, results, strict=True):
            (stored if failure is None else failed[failure]).append(redrive.dead_letter_id)
        return stored, dict(failed)

    async def _publish_one(self, redrive: Redrive) -> str | None:
        """None if it is stored, now or by an earlier try with the same id; else what to tell the operator."""
        headers = {name: value for name, value in redrive.headers.items() if not name.lower().startswith("nats-")}
        headers |= {"Nats-Msg-Id": redrive.redrive_id, REDRIVE_OF: str(redrive.dead_letter_id)}
        try:
            await self._publisher.publish(redrive.subject, redrive.payload, headers)
        except AmbiguousError:
            return _UNCERTAIN
        except RetryableError as error:
            return f"{_NOT_STORED}{error}"
        except RejectedError as error:
            return f"{_NEVER}{error}"
        return None
