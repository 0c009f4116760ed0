"""Rebuild the read model behind the summaries, while events flow; for an operator.

The event: `{"source": "record | stream", "dry_run": false}`, and for the stream `"from_sequence": 1, "budget": "13m"`.
"""

from collections.abc import Mapping
from typing import Any

from grantwire.entrypoints.task import TaskHandler
from grantwire.read_model.commands import RebuildCommand
from grantwire.runtime.rebuild import RebuildRuntime


def handle(event: Mapping[str, Any], rt: RebuildRuntime) -> dict[str, Any]:
    """Counts of what differed and what was changed; a replay that has not come to its end says where to go on."""
    return rt.execute(RebuildCommand.parse(event)).as_dict()


handler = TaskHandler("rebuild_read_model", RebuildRuntime.build, handle)
