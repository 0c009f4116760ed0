"""List, redrive or discard dead letters, for an operator.

The event: `{"action": "list | redrive | discard", "kind": "outbox | notification | nats", and one of "ids": [...],
"filter": {...}, "all": true; "dry_run": true, "force": false, "actor": "who", "reason": "why"}`.
"""

from collections.abc import Mapping
from typing import Any

from grantwire.dead_letters.commands import DeadLetterCommand
from grantwire.entrypoints.task import TaskHandler
from grantwire.runtime.redrive import RedriveRuntime


def handle(event: Mapping[str, Any], rt: RedriveRuntime) -> dict[str, Any]:
    """Batch by batch; counts are complete, ids are the first thousand."""
    return rt.dead_letters.execute(DeadLetterCommand.parse(event)).as_dict()


handler = TaskHandler("redrive_dead_letters", RedriveRuntime.build, handle)
