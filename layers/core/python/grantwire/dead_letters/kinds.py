"""The database statements that redrive or discard each kind of dead letter."""

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

    DeadLetterUpdate = Callable[[Connection, Sequence[UUID], datetime | None], list[UUID]]

# Each function changes only dead letters that are still open, and returns their ids. The kind `nats` is redriven by
# publishing its message, which no statement can do.
DISCARD_BY_KIND: Mapping[str, DeadLetterUpdate] = {
    "outbox": outbox.discard,
    "notification": notifications.discard_dead_letters,
    "nats": store.discard,
}
REDRIVE_BY_KIND: Mapping[str, DeadLetterUpdate] = {"outbox": outbox.redrive, "notification": notifications.redrive}
