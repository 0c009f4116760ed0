"""Runs a relay that is killed or stopped after it published events and before it completes them.

SABOTAGE is `kill` (SIGKILL) or `stop` (SIGSTOP; the relay continues after SIGCONT). The last line of the output is the
result of the relay.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from grantwire.outbox import store
from tests.support.workers.relay_support import budget, relay

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def main() -> None:
    """Run one relay until it is idle or killed."""
    complete = store.complete

    def interrupt_and_complete(*arguments: Any, **options: Any) -> int:
        os.kill(os.getpid(), SIGNALS[os.environ["SABOTAGE"]])
        return complete(*arguments, **options)

    store.complete = interrupt_and_complete
    with relay(os.environ) as runtime:
        print(json.dumps(runtime.run(budget(20, until_idle=True))), flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main()
