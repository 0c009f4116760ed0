"""The output of a worker's threads and libraries: metrics from one thread only, and log lines in one format."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from grantwire.observability import metrics
from grantwire.wiring.workers.deliver_notifications import DeliveryRuntime
from grantwire.wiring.workers.handler import WorkerHandler
from tests.support.paths import PYTHONPATH
from tests.support.plaintext import PLAINTEXT
from tests.support.servers import newest_postgres
from tests.support.workers.deliver_receiver import ReceivedRequest, Receiver

if TYPE_CHECKING:
    import pytest

    from tests.integration.conftest import Rows


@newest_postgres
def test_sender_threads_add_no_metrics(database_url: str, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker counts the outcomes of its threads: a metric belongs to an invocation, not to a thread."""
    rows.execute(
        """
        INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload)
        SELECT gen_random_uuid(), gen_random_uuid(), 'EntitlementGranted', 'u', 'item' || n, 1, '{"version": 1}'
          FROM generate_series(1, 20) n"""
    )
    added: list[tuple[str, str]] = []
    received_keys: list[str] = []
    add_metric = metrics.add_metric

    def record(name: str, *values: Any) -> None:
        added.append((name, threading.current_thread().name))
        add_metric(name, *values)

    def receive(request: ReceivedRequest) -> int:
        received_keys.append(request.key)
        return 204

    monkeypatch.setattr(metrics, "add_metric", record)
    with Receiver(receive) as receiver:
        runtime = DeliveryRuntime.build({**PLAINTEXT, "DATABASE_URL": database_url, **receiver.environ})
        try:
            WorkerHandler("deliver_notifications", lambda _: runtime)({"until": "idle", "budget": "20s"}, None)
        finally:
            runtime.close()
    assert len(received_keys) == 20
    assert added == [("NotificationsSent", threading.current_thread().name)]


NATS_FAILS = """
import asyncio, os, nats, psycopg
from grantwire.observability import configure
configure(os.environ)
try:
    asyncio.run(nats.connect("nats://127.0.0.1:1", max_reconnect_attempts=1, reconnect_time_wait=0.01))
except Exception:
    pass
"""


def test_log_lines_of_nats_py_are_json() -> None:
    """Its default callback logs every error, here a refused connection: JSON with level, name and stack trace."""
    process = subprocess.run(
        [sys.executable, "-c", NATS_FAILS],
        env={"PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=60,
    )
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    assert lines
    for line in lines:
        assert (line["level"], line["name"], line["service"]) == ("ERROR", "nats.aio.client", "grantwire")
        assert line["exception_name"] == "ConnectionRefusedError"
