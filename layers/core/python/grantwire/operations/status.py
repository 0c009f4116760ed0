"""The status of every stage, for operators (T1)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from grantwire.database.migrations import read_schema
from grantwire.operations.problems import find_problems, is_late, late_after

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grantwire.database import Database
    from grantwire.entitlements.settings import TimeSettings
    from grantwire.operations.problems import ProblemSettings

# Where counts stop.
_CAP = 10_000
_BRIDGE = "bridge_events"
_DELIVERY = "deliver_notifications"
_SWEEP = "sweep_retention"
# The bridge measures the consumer lag every 15 seconds, or when it starts. It is unknown after half the time from which
# the bridge is late, as in the SQL function status_sample_take.
_LAG_KNOWN_PART = 0.5

# The SQL functions count; the last column has the heartbeats, in the form of the response.
_READ = """
SELECT operations_status(%(cap)s, %(now)s), settled_through(%(cap)s, %(grace)s, %(now)s),
       outbox_confirmation_status(%(cap)s, %(now)s), clients_expiring(%(expiry_window)s, %(cap)s, %(now)s),
       coalesce((SELECT jsonb_agg(jsonb_build_object(
           'worker', w.worker, 'outcome', w.outcome,
           'started_at', rfc3339(w.started_at), 'finished_at', rfc3339(w.finished_at),
           'duration_ms', greatest(0, round(extract(epoch FROM w.finished_at - w.started_at) * 1000)),
           'seconds_since', greatest(0, extract(epoch FROM coalesce(%(now)s::timestamptz, now())
                                                           - greatest(w.finished_at, w.resumed_at))),
           'failures_in_a_row', w.failures, 'last_success_at', rfc3339(w.last_success_at),
           'error', w.error, 'result', w.result) ORDER BY w.worker) FROM worker_heartbeats w), '[]')
"""


class Statuses:
    """Reads the status. `settings` decides from when on something is a problem."""

    def __init__(self, database: Database, settings: ProblemSettings, times: TimeSettings) -> None:
        self._database = database
        self._times = times
        self._settings = settings

    def read(self, now: datetime | None = None) -> dict[str, Any]:
        """Return the status as the JSON object of the response; `now` is None in production."""
        expiry_window = timedelta(days=self._settings.client_expiry_days)
        parameters = {"cap": _CAP, "grace": self._times.grace_interval, "expiry_window": expiry_window, "now": now}
        counts, settled, confirmation, clients, workers = self._database.fetch_row(_READ, parameters)
        for worker in workers:
            worker["late"] = is_late(worker["worker"], worker["seconds_since"], self._settings.schedule)
        status = {
            "at": counts["at"],
            "settled": settled,
            "confirmation": confirmation,
            "clients": clients,
            **self._compose(counts, workers),
        }
        problems = find_problems(status, self._settings)
        return {"state": "ATTENTION" if problems else "OK", "problems": problems, **status}

    def _compose(self, counts: Mapping[str, Any], workers: list[dict[str, Any]]) -> dict[str, Any]:
        known_for = timedelta(seconds=late_after(self._settings.schedule)[_BRIDGE] * _LAG_KNOWN_PART)
        by_name = {worker["worker"]: worker for worker in workers}
        expected = read_schema().version
        outbox, notifications, commands = (dict(counts[name]) for name in ("outbox", "notifications", "commands"))
        return {
            "leases": {
                name: {key: part.pop(key) for key in ("held", "expired", "expired_since")}
                for name, part in (("outbox", outbox), ("notifications", notifications), ("commands", commands))
            },
            "inbox": {"processed_last_minute": notifications.pop("processed_last_minute")},
            "outbox": outbox,
            "stream": describe_stream(by_name.get(_BRIDGE), datetime.fromisoformat(counts["at"]), known_for),
            "notifications": notifications,
            "receiver": _describe_receiver(by_name.get(_DELIVERY)),
            "dead_letters": counts["dead_letters"],
            "read_model": _describe_read_model(by_name.get(_SWEEP)),
            "partitions": counts["partitions"],
            "schema": {"version": counts["version"], "expected": expected, "matches": counts["version"] == expected},
            "commands": commands,
            "workers": workers,
        }


def describe_stream(bridge: Mapping[str, Any] | None, now: datetime, known_for: timedelta) -> dict[str, Any]:
    """Return what the bridge reported about NATS. An old report says nothing about now, and has no consumer lag."""
    if bridge is None:
        unknown = dict.fromkeys(("consumer_lag", "measured_at", "unknown_since"))
        return {"state": "UNKNOWN", "reason": "the bridge has not run", **unknown}
    lag = bridge["result"].get("consumer_lag")
    measured_at = None if lag is None else bridge["result"].get("consumer_lag_at", bridge["finished_at"])
    known_at = measured_at or bridge["last_success_at"]
    if measured_at is not None and now - datetime.fromisoformat(measured_at) > known_for:
        lag = measured_at = None
    state, reason = "UNKNOWN", bridge["error"]
    if bridge["late"]:
        lag = measured_at = None
        reason = "the last run of the bridge is too long ago"
    elif bridge["outcome"] == "OK" or lag is not None:
        state, reason = "UP", None
    elif bridge["outcome"] == "DEGRADED":
        state = "DOWN"
    return {
        "state": state,
        "reason": reason,
        "consumer_lag": lag,
        "measured_at": measured_at,
        "unknown_since": known_at if lag is None else None,
    }


def _describe_receiver(delivery: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what delivery reported about the receiver. An old report says nothing about now."""
    found = {} if delivery is None else delivery["result"].get("receiver", {})
    state = "UNKNOWN"
    if delivery is not None and found and not delivery["late"]:
        failing = "FAILING" if found["failures_in_a_row"] else "AVAILABLE"
        state = "UNAVAILABLE" if found["circuit"] == "OPEN" else failing
    return {
        "state": state,
        "unavailable_since": found.get("failing_since"),
        "failures_in_a_row": found.get("failures_in_a_row", 0),
        "last_error": found.get("last_error"),
        "last_error_at": found.get("last_error_at"),
        "last_response_at": found.get("last_response_at"),
    }


def _describe_read_model(sweep: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the differences that the sweep found last."""
    found = {} if sweep is None else sweep["result"]
    differences = {name: found.get(name) for name in ("ahead", "behind", "wrong")}
    return {**differences, "measured_at": sweep["finished_at"] if sweep and "ahead" in found else None}
