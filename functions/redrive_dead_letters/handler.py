"""List, redrive or discard dead letters; invoked by an operator.

Example of an event: `{"action": "redrive", "kind": "outbox", "all": true, "actor": "jane", "reason": "NATS is up"}`.
Actions: list, redrive, discard. Kinds: outbox, notification, nats. Select dead letters by one of `ids`, `filter` and
`all`. Options: `dry_run`, `force`, `limit`.
"""

from collections.abc import Mapping
from typing import Any

from grantwire.dead_letters.commands import DeadLetterCommand
from grantwire.wiring.tasks.handler import TaskHandler
from grantwire.wiring.tasks.redrive_dead_letters import RedriveRuntime


def handle(event: Mapping[str, Any], rt: RedriveRuntime, source: str) -> dict[str, Any]:
    """Execute one command in batches; the result has complete counts and the first 1,000 ids."""
    return rt.dead_letters.execute(DeadLetterCommand.parse(event), source).as_dict()


handler = TaskHandler("redrive_dead_letters", RedriveRuntime.build, handle)
