"""A delivery worker in its own process, which the test stops or kills.

`python -m tests.support.workers.deliver_worker SECONDS` runs until it is idle, at most SECONDS.
"""

from __future__ import annotations

import json
import os
import sys
import time

from grantwire.wiring.workers.deliver_notifications import DeliveryRuntime
from grantwire.workers.budget import Budget

if __name__ == "__main__":
    runtime = DeliveryRuntime.build(os.environ)
    print(json.dumps(runtime.run(Budget(time.monotonic() + float(sys.argv[1]), until_idle=True))))  # noqa: T201
    runtime.close()
