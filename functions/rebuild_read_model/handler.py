"""Rebuild the read model while the workers run; invoked by an operator.

The event is `{"source": "record"}` or `{"source": "stream", "from_sequence": 1, "budget": "13m"}`, with `actor` and
`reason`; or, to change nothing, with `"dry_run": true`.
"""

from collections.abc import Mapping
from typing import Any

from grantwire.read_model.commands import RebuildCommand
from grantwire.wiring.tasks.handler import TaskHandler
from grantwire.wiring.tasks.rebuild_read_model import RebuildRuntime


def handle(event: Mapping[str, Any], rt: RebuildRuntime, source: str) -> dict[str, Any]:
    """Return counts of differing and changed rows.

    A rebuild from the stream that did not finish also returns the sequence to continue from.
    """
    return rt.execute(RebuildCommand.parse(event), source).as_dict()


handler = TaskHandler("rebuild_read_model", RebuildRuntime.build, handle)
