"""A worker of operator commands that hangs at a point of its second batch, until the test kills it.

`STOP_AT` is `commit` (the changes of the batch are written, but not committed) or `publish` (the messages are
published, but the dead letters are not closed).
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from grantwire.dead_letters.republish import Republisher
from grantwire.operations.command_store import Fence
from grantwire.wiring.workers.run_operator_commands import OperatorCommandsRuntime
from grantwire.workers.budget import Budget

_calls = 0


def _hang_in_second_call(function: Any) -> Any:
    def replacement(*arguments: Any) -> Any:
        global _calls  # noqa: PLW0603 - a program for one test
        _calls += 1
        result = function(*arguments)
        if _calls == 2:
            print("reached", flush=True)  # noqa: T201 - the test waits for this line
            time.sleep(60)
        return result

    return replacement


if __name__ == "__main__":
    if os.environ["STOP_AT"] == "commit":
        Fence.end = _hang_in_second_call(Fence.end)  # type: ignore[method-assign]
    else:
        Republisher.publish = _hang_in_second_call(Republisher.publish)  # type: ignore[method-assign]
    runtime = OperatorCommandsRuntime.build(os.environ, batch_size=3)
    runtime.run(Budget(time.monotonic() + 60, until_idle=True))
    sys.exit("the test did not kill this process")
