"""A relay that dies or stops at a chosen moment, as a process of its own.

SABOTAGE is `kill` (SIGKILL after the stream has the events and before the outbox knows it) or `stop` (SIGSTOP at that
moment; when it is continued it goes on). The last line of its output is what the relay returned.
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
    """Run one relay until it has nothing to do, or to its end."""
    complete = store.complete

    def interrupted(*arguments: Any, **options: Any) -> int:
        os.kill(os.getpid(), SIGNALS[os.environ["SABOTAGE"]])
        return complete(*arguments, **options)

    store.complete = interrupted
    with relay(os.environ) as runtime:
        print(json.dumps(runtime.run(budget(20, until_idle=True))), flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main()
