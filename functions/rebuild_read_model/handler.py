"""Rebuild the read model while the workers run; invoked by an operator.

The event is `{"source": "record", "dry_run": false}` or
`{"source": "stream", "from_sequence": 1, "budget": "13m", "dry_run": false}`.
"""

from collections.abc import Mapping
from typing import Any

from grantwire.entrypoints.task import TaskHandler
from grantwire.read_model.commands import RebuildCommand
from grantwire.runtime.rebuild import RebuildRuntime


def handle(event: Mapping[str, Any], rt: RebuildRuntime) -> dict[str, Any]:
    """Return counts of differing and changed rows.

    A rebuild from the stream that did not finish also returns the sequence to continue from.
    """
    return rt.execute(RebuildCommand.parse(event)).as_dict()


handler = TaskHandler("rebuild_read_model", RebuildRuntime.build, handle)
