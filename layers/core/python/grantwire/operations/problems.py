"""Decides what in the status needs a person, and which worker is late (T1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire.operations.wording import count_of
from grantwire.settings import integer, setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MINUTES = 60.0
# How long after the end of its last run each worker is late: three missed runs, or two of an hourly one. A test
# compares the names with the schedules of the template.
LATE_AFTER_SECONDS = {
    "relay_outbox": 4 * _MINUTES,
    "bridge_events": 4 * _MINUTES,
    "deliver_notifications": 4 * _MINUTES,
    "record_advisories": 4 * _MINUTES,
    "run_operator_commands": 4 * _MINUTES,
    "expire_entitlements": 4 * _MINUTES,
    "sweep_retention": 150 * _MINUTES,
}
_MIN_MONTHS_AHEAD = 1


@dataclass(frozen=True, slots=True)
class ProblemSettings:
    """From which age of an event, and which consumer lag, the status reports a problem; the alarms have the same."""

    oldest_pending_seconds: int = setting("STATUS_OLDEST_PENDING_SECONDS", integer(low=1, high=10**9), default="120")
    consumer_lag: int = setting("STATUS_CONSUMER_LAG", integer(low=0, high=10**12), default="10000")


def is_late(worker: str, seconds_since: float) -> bool:
    """Return whether the next run of the worker should have ended by now."""
    return seconds_since > LATE_AFTER_SECONDS.get(worker, float("inf"))


def find_problems(status: Mapping[str, Any], settings: ProblemSettings) -> list[dict[str, str]]:
    """Return what needs a person, most urgent first, as objects with `code` and `message`."""
    return [{"code": code, "message": message} for code, message in _problems(status, settings)]


def _problems(status: Mapping[str, Any], settings: ProblemSettings) -> Iterator[tuple[str, str]]:
    stream, schema = status["stream"], status["schema"]
    if stream["state"] == "DOWN":
        yield "NATS_UNAVAILABLE", f"the bridge cannot use NATS: {stream['reason']}"
    if not schema["matches"]:
        yield "SCHEMA_DIFFERS", f"the schema is {schema['version']}, but this code needs {schema['expected']}"
    yield from _worker_problems(status["workers"])
    yield from _flow_problems(status, settings)
    yield from _repair_problems(status)


def _worker_problems(workers: list[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    known = {worker["worker"] for worker in workers}
    for name, seconds in LATE_AFTER_SECONDS.items():
        if name not in known and seconds < _MINUTES * _MINUTES:
            yield "WORKER_LATE", f"{name} has never reported a run"
    for worker in workers:
        if worker["late"]:
            yield "WORKER_LATE", f"{worker['worker']} last ran {count_of(round(worker['seconds_since']), 'second')} ago"
        elif worker["outcome"] == "FAILED":
            yield "WORKER_FAILED", f"{worker['worker']} failed: {worker['error']}"


def _flow_problems(status: Mapping[str, Any], settings: ProblemSettings) -> Iterator[tuple[str, str]]:
    age, lag = status["outbox"]["oldest_pending_seconds"], status["stream"]["consumer_lag"]
    if age > settings.oldest_pending_seconds:
        yield "EVENTS_OLD", f"the oldest event waits for {count_of(round(age), 'second')} to be published"
    if lag is not None and lag > settings.consumer_lag:
        yield "CONSUMER_LAG", f"the bridge has not acknowledged {count_of(lag, 'message')}"
    for name, leases in status["leases"].items():
        if expired := leases["expired"]:
            released = "it" if expired == 1 else "them"
            yield (
                "LEASES_EXPIRED",
                f"{count_of(expired, 'lease')} of {name} expired: a worker stopped without releasing {released}",
            )


def _repair_problems(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    dead_letters, read_model, partitions = status["dead_letters"], status["read_model"], status["partitions"]
    if dead_letters["open"]:
        open_, capped = dead_letters["open"], dead_letters["capped"]
        yield "DEAD_LETTERS", count_of(open_, "dead letter is open", "dead letters are open", capped=capped)
    if wrong := (read_model["ahead"] or 0) + (read_model["wrong"] or 0):
        yield (
            "READ_MODEL_DIFFERS",
            f"{count_of(wrong, 'row')} of the read model {'is' if wrong == 1 else 'are'} wrong; rebuild it",
        )
    if partitions["months_ahead"] < _MIN_MONTHS_AHEAD or partitions["rows_in_default"]:
        months, rows = count_of(max(0, partitions["months_ahead"]), "month"), partitions["rows_in_default"]
        yield (
            "PARTITIONS_MISSING",
            f"the audit has partitions for {months} ahead, and {count_of(rows, 'row')} without one",
        )
    if failed := status["commands"]["failed_last_day"]:
        yield (
            "COMMANDS_FAILED",
            f"{count_of(failed, 'command of an operator', 'commands of operators')} failed in the last day",
        )
