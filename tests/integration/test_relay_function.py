"""O7, S2: the function relay_outbox as Lambda invokes it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from grantwire.wiring.workers.handler import WorkerHandler
from tests.support.paths import ROOT
from tests.support.servers import newest_postgres
from tests.support.workers.relay_support import enqueue, enqueue_many, read_stream, relay

if TYPE_CHECKING:
    import pytest

    from tests.integration.conftest import Rows

pytestmark = newest_postgres


def test_event_file_publishes_all_pending_events(
    environ: dict[str, str], rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """O5, O7: it runs until idle and writes the metrics for the alarms to standard output."""
    enqueue_many(rows, aggregates=2, each=2)
    enqueue(rows, "poison/item1", 1, user_id="")
    event = json.loads((ROOT / "infra" / "events" / "relay_outbox.json").read_text())
    with relay(environ) as runtime:
        handler = WorkerHandler("relay_outbox", lambda _: runtime)
        assert handler(event, None).items() >= {"published": 4, "retried": 0, "failed": 1, "released": 0}.items()
        # The next invocation reuses the connections.
        enqueue(rows, "u0/item1", 3)
        assert handler(event, None)["published"] == 1
    assert len(read_stream(environ)) == 5
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    first, second = [line for line in lines if "_aws" in line][-2:]
    assert (first["EventsPublished"][-1], first["EventsFailed"][-1]) == (4, 1)
    assert second["EventsPublished"] == [1]
    assert "EventsFailed" not in second
    assert second["OldestEventAge"] == [0]
