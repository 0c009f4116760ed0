"""X1: in the mode economical, one start of the workers carries a change from the outbox to the receiver."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from grantwire.wiring.workers.bridge_events import BridgeRuntime
from grantwire.wiring.workers.deliver_notifications import DeliveryRuntime
from grantwire.wiring.workers.relay_outbox import RelayRuntime
from grantwire.workers.budget import Budget
from infra.local.deployment.conditions import ConditionEvaluator
from infra.local.deployment.template import functions, load_template
from tests.support.concurrency import run_concurrently
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from typing import Any

    from tests.integration.conftest import Rows
    from tests.support.client import Client

WORKERS: dict[str, Any] = {
    "relay_outbox": RelayRuntime,
    "bridge_events": BridgeRuntime,
    "deliver_notifications": DeliveryRuntime,
}


def _inputs() -> dict[str, dict[str, Any]]:
    """Return the input of each worker's schedule."""
    template = load_template()
    text = ConditionEvaluator(template, {"WorkerMode": "economical"}).text
    workers = {one["CodeUri"].split("/")[1]: one for one in functions(template).values()}
    return {
        name: json.loads(text(event["Properties"]["Input"]) or "")
        for name in WORKERS
        for event in workers[name]["Events"].values()
    }


class Stages:
    """A clock for each worker, which stands still until the worker before it has ended, however busy the machine is."""

    def __init__(self) -> None:
        self._ended: dict[int, float] = {-1: time.monotonic()}

    def clock(self, number: int) -> float:
        """Return the seconds since the worker before this one has ended, twice as fast as they pass."""
        ended = self._ended.get(number - 1)
        return 0.0 if ended is None else 2 * (time.monotonic() - ended)

    def end(self, number: int) -> None:
        """Let the clock of the next worker run."""
        self._ended[number] = time.monotonic()


@newest_postgres
def test_one_start_of_the_workers_delivers_a_change(environ: dict[str, str], client: Client, rows: Rows) -> None:
    """They start together. Bridge and delivery wait for what the relay publishes, and all end by themselves."""
    assert client.grant("k").status == 200
    inputs, stages = _inputs(), Stages()

    def run(number: int) -> dict[str, Any]:
        name = list(WORKERS)[number]
        runtime = WORKERS[name].build(environ)
        try:
            budget = Budget.from_event(inputs[name], None, clock=lambda: stages.clock(number))
            result: dict[str, Any] = runtime.run(budget)
        finally:
            stages.end(number)
            runtime.close()
        return result

    relay, bridge, delivery = run_concurrently(3, run)
    assert (relay["published"], bridge["recorded"], delivery["sent"]) == (1, 1, 1)
    assert rows.execute("SELECT status FROM notifications").fetchall() == [{"status": "SENT"}]
