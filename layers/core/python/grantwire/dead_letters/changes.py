"""What redrive and discard do to each kind of dead letter, as far as it happens in the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire import notifications
from grantwire.dead_letters import store
from grantwire.outbox import store as outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from grantwire.database import Connection

    Change = Callable[[Connection, Sequence[UUID], datetime | None], list[UUID]]

# Each changes what is still open and returns it. A message of NATS is not redriven here: it has to be published.
DISCARD: Mapping[str, Change] = {
    "outbox": outbox.discard,
    "notification": notifications.discard_dead_letters,
    "nats": store.discard,
}
REDRIVE: Mapping[str, Change] = {"outbox": outbox.redrive, "notification": notifications.redrive}
