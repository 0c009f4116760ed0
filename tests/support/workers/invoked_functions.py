"""Program that invokes Lambda functions for `tests.support.invocations`.

Each line of standard input is `{"function": NAME, "event": {...}}`. The functions write their log lines to standard
output. After each invocation follows the line `{"invoked": NAME, "result": ...}`, or `"error"` with the exception that
the handler raised. CLOCK_AHEAD_SECONDS moves the clock of this process forward; PostgreSQL and NATS keep theirs.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import time_machine


def _invoke(name: str, event: Any) -> dict[str, Any]:
    context = SimpleNamespace(
        function_name=name,
        aws_request_id="00000000-0000-4000-8000-000000000000",
        invoked_function_arn=f"arn:aws:lambda:us-east-1:123456789012:function:{name}",
        memory_limit_in_mb=256,
        get_remaining_time_in_millis=lambda: 60_000,
    )
    try:
        return {"invoked": name, "result": import_module(f"functions.{name}.handler").handler(event, context)}
    except Exception as error:  # noqa: BLE001 - Lambda reports every exception
        return {"invoked": name, "error": repr(error)}


def main() -> None:
    """Serve until standard input ends."""
    ahead = timedelta(seconds=float(os.environ.get("CLOCK_AHEAD_SECONDS", "0")))
    with time_machine.travel(datetime.now(UTC) + ahead) if ahead else contextlib.nullcontext():
        for line in sys.stdin:
            invocation = json.loads(line)
            print(json.dumps(_invoke(invocation["function"], invocation["event"])), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
