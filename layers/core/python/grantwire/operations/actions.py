"""Actions of operators on dead letters, as the operations API shows them (T1, T2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from grantwire.database import Connection

# The SQL function allows no more dead letters, and no more actions.
MAX_IDS = 1000
MAX_ACTIONS = 1000
_SHOWN = ("action_id", "action", "actor", "reason", "at")

_FIND = "SELECT operator_actions_find(%(ids)s::uuid[], %(limit)s)"


def find_actions(connection: Connection, ids: Sequence[UUID | str], limit: int) -> list[dict[str, Any]]:
    """Return the newest actions on these dead letters, newest first, including dry runs."""
    ((actions,),) = connection.execute(_FIND, {"ids": list(ids), "limit": limit}).fetchall()
    return list(actions)


def find_last_actions(connection: Connection, ids: Sequence[UUID | str]) -> dict[str, dict[str, Any]]:
    """Return the last action that changed each of these dead letters, by its id, if there is one."""
    last: dict[str, dict[str, Any]] = {}
    for action in find_actions(connection, ids, MAX_ACTIONS):
        if not action["dry_run"]:
            shown = {name: action[name] for name in _SHOWN}
            for dead_letter_id in action["dead_letter_ids"]:
                last.setdefault(dead_letter_id, shown)
    return last
