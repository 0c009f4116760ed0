"""What a redrive or a discard would do, for the first dead letters of its selection (T1)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grantwire.dead_letters.redrive import DeadLetters
    from grantwire.operations.commands import NewCommand

# A request must end before API Gateway's timeout.
MAX_EXAMINED = 5000


class DryRuns:
    """Executes dry runs. Each batch is recorded in `operator_actions` like every other command."""

    def __init__(self, dead_letters: DeadLetters) -> None:
        self._dead_letters = dead_letters

    def execute(self, command: NewCommand, source: str) -> dict[str, Any]:
        """Return the JSON object of the response; nothing changes."""
        parsed = command.to_dead_letter_command()
        limited = replace(parsed, limit=min(parsed.limit, MAX_EXAMINED))
        report = self._dead_letters.execute(limited, source).as_dict()
        return {
            "dry_run": True,
            "kind": report["kind"],
            "action": report["action"],
            "selected": report["selected"],
            "would_change": report["done"],
            "skipped": report["skipped"],
            "ids": report["ids"],
            "more": report["more"],
        }
