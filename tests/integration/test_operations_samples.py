"""T8: one sample of the status a minute, for a day; T7: its numbers as metrics."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.observability import metrics
from grantwire.operations.samples import Samples
from grantwire.settings import load
from grantwire.workers.schedule import ScheduleSettings
from tests.support.concurrency import run_concurrently
from tests.support.operations import OpsClient
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows
    from tests.support.client import Client

SAMPLES = "/v1/ops/samples"
NOON = datetime(2026, 1, 8, 12, 0, 30, tzinfo=UTC)


@pytest.fixture
def ops(database_url: str) -> Iterator[OpsClient]:
    """Caller of the operations API."""
    with OpsClient(database_url) as client:
        yield client


def test_sample_has_the_numbers_of_the_status(ops: OpsClient, client: Client, rows: Rows) -> None:
    """T8: what waits, what failed, and what was done in the minute before."""
    for number in range(4):
        client.grant(f"k{number}", user_id=f"u{number}")
    rows.execute("UPDATE outbox_events SET status = 'FAILED', ready = false WHERE payload->>'user_id' = 'u0'")
    rows.execute(
        "UPDATE outbox_events SET status = 'PUBLISHED', ready = false, published_at = now()"
        " WHERE payload->>'user_id' = 'u1'"
    )
    rows.execute(
        "INSERT INTO worker_heartbeats VALUES ('bridge_events', now(), now(), 'OK', NULL, %s, 0, NULL)",
        ('{"consumer_lag": 7}',),
    )
    assert Samples(ops.runtime.database, ops.runtime.times, load(ScheduleSettings, {})).take_if_due()
    (sample,) = ops.get(SAMPLES).json["samples"]
    assert {name: sample[name] for name in ("outbox_pending", "outbox_failed", "dead_letters", "published")} == {
        "outbox_pending": 2,
        "outbox_failed": 1,
        "dead_letters": 1,
        "published": 1,
    }
    assert (sample["consumer_lag"], sample["sent"], sample["notifications_pending"]) == (7, 0, 0)
    assert sample["at"].endswith(":00.000000Z")


def test_sample_is_written_with_its_metrics(ops: OpsClient, capsys: pytest.CaptureFixture[str]) -> None:
    """T7: also if a number is zero, so that the dashboard shows it. ChangeFeedLag has only one dimension."""
    Samples(ops.runtime.database, ops.runtime.times, load(ScheduleSettings, {})).take_if_due()
    assert set(metrics.metric_set) == {
        *("OutboxPending", "OutboxFailed", "NotificationsPending", "DeadLettersOpen", "LeasesExpired"),
        *("PartitionsMissing", "WorkersLate", "SettledAge"),
    }
    (line,) = (json.loads(line) for line in capsys.readouterr().out.splitlines() if "ChangeFeedLag" in line)
    assert (line["ChangeFeedLag"], line["_aws"]["CloudWatchMetrics"][0]["Dimensions"]) == ([0], [["service"]])


def test_each_minute_has_one_sample(ops: OpsClient, database_url: str, rows: Rows) -> None:
    """T8: of several workers one writes it, and a worker asks the database once a minute."""

    def take(_: int) -> bool:
        with OpsClient(database_url) as client:
            return Samples(client.runtime.database, client.runtime.times, load(ScheduleSettings, {})).take_if_due(NOON)

    assert sum(run_concurrently(5, take)) == 1
    times = iter([0.0, 30.0, 59.0, 60.0])
    samples = Samples(ops.runtime.database, ops.runtime.times, load(ScheduleSettings, {}), clock=lambda: next(times))
    later = NOON + timedelta(minutes=1)
    assert [samples.take_if_due(later) for _ in range(4)] == [True, False, False, False]
    assert len(rows.execute("SELECT FROM status_samples").fetchall()) == 2


def test_samples_of_the_last_hours_are_listed_oldest_first(ops: OpsClient, rows: Rows) -> None:
    """T8: one hour by default, 24 at most."""
    for minutes in (10, 30, 90, 23 * 60, 25 * 60):
        rows.execute(
            "INSERT INTO status_samples"
            " VALUES (now() - %s * interval '1 minute', %s, 0, 0, NULL, 0, 0, 0, 0, 0, now(), 0)",
            (minutes, minutes),
        )

    def pending(**query: str) -> list[Any]:
        return [sample["outbox_pending"] for sample in ops.get(SAMPLES, **query).json["samples"]]

    assert pending() == [30, 10]
    assert pending(hours="2") == [90, 30, 10]
    assert pending(hours="24") == [23 * 60, 90, 30, 10]


@newest_postgres
@pytest.mark.parametrize("hours", ["0", "25", "-1", "1.5", "", "one", "٣", "1" * 5000])
def test_invalid_hours_are_refused(ops: OpsClient, hours: str) -> None:
    """T8: the response says what is allowed."""
    response = ops.get(SAMPLES, hours=hours)
    assert (response.code, response.json["message"]) == ("BAD_REQUEST", "hours must be a whole number between 1 and 24")


def test_sample_that_cannot_be_taken_delays_nothing(ops: OpsClient, rows: Rows) -> None:
    """T8: the failure is logged, and the worker continues with its commands."""
    rows.execute("DROP TABLE status_samples CASCADE")
    assert Samples(ops.runtime.database, ops.runtime.times, load(ScheduleSettings, {})).take_if_due() is False
