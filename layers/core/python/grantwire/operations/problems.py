"""Decides what in the status needs a person, and which worker is late (T1, W4)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.errors import TopologyError
from grantwire.operations.advice import ADVICE
from grantwire.operations.parsing import format_time
from grantwire.operations.wording import count_of
from grantwire.settings import group, integer, setting
from grantwire.workers.schedule import ScheduleSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MINUTES = 60.0
# A test compares the names with the schedules of the template.
SWEEP = "sweep_retention"
WORKERS = (
    *("relay_outbox", "bridge_events", "deliver_notifications"),
    *("record_advisories", "run_operator_commands", "expire_entitlements", SWEEP),
)
# A worker is late after three missed runs, the hourly one after two, always from the end of its last run.
_LATE_RUNS = 4
_SWEEP_LATE_SECONDS = 150 * _MINUTES
# A relay compares the events every ten seconds, or when it starts, and the next one takes over at its next start.
_UNCHECKED_SECONDS = 2 * _MINUTES
_MIN_MONTHS_AHEAD = 1
# The workers whose error is that of the stream.
_NATS_WORKERS = {"relay_outbox", "bridge_events", "record_advisories"}


@dataclass(frozen=True, slots=True)
class ProblemSettings:
    """From when on the status reports a problem: an old change, a consumer lag, a client that is about to expire.

    What the stream lost is reported for a time, although it is repaired without a person.
    """

    settled_age_seconds: int = setting("STATUS_SETTLED_AGE_SECONDS", integer(low=1, high=10**9), default="60")
    consumer_lag: int = setting("STATUS_CONSUMER_LAG", integer(low=0, high=10**12), default="10000")
    schedule: ScheduleSettings = group(ScheduleSettings)
    loss_seconds: int = setting("STATUS_LOSS_SECONDS", integer(low=1, high=86_400), default="3600")
    client_expiry_days: int = setting("STATUS_CLIENT_EXPIRY_DAYS", integer(low=1, high=365), default="14")


class Problem(NamedTuple):
    """What needs a person: since when, as far as it is known, and the last error, if there is one."""

    code: str
    message: str
    since: str | None = None
    last_error: str | None = None


def late_after(schedule: ScheduleSettings) -> dict[str, float]:
    """Return after how many seconds since the end of its last run each worker is late."""
    late = {worker: _LATE_RUNS * schedule.interval_seconds(worker) for worker in WORKERS}
    return late | {SWEEP: _SWEEP_LATE_SECONDS}


def is_late(worker: str, seconds_since: float, schedule: ScheduleSettings) -> bool:
    """Return whether the next run of the worker should have ended by now."""
    return seconds_since > late_after(schedule).get(worker, float("inf"))


def find_problems(status: Mapping[str, Any], settings: ProblemSettings) -> list[dict[str, str | None]]:
    """Return what needs a person, most urgent first, each with what still works and what to do."""
    return [problem._asdict() | ADVICE[problem.code]._asdict() for problem in _problems(status, settings)]


def _problems(status: Mapping[str, Any], settings: ProblemSettings) -> Iterator[Problem]:
    schema = status["schema"]
    yield from _server_problems(status)
    if not schema["matches"]:
        message = f"the schema is {schema['version']}, but this code needs {schema['expected']}"
        yield Problem("SCHEMA_DIFFERS", message)
    yield from _worker_problems(status)
    yield from _late_changes(status, settings)
    yield from _loss_problems(status, settings)
    yield from _flow_problems(status, settings)
    yield from _repair_problems(status)
    yield from _client_problems(status, settings)


def _server_problems(status: Mapping[str, Any]) -> Iterator[Problem]:
    stream, receiver, notifications = status["stream"], status["receiver"], status["notifications"]
    if stream["state"] == "DOWN":
        reason, since = stream["reason"], stream["unknown_since"]
        if str(reason).startswith(TopologyError.PREFIX):
            yield Problem("STREAM_MISSING", "a stream or a consumer of NATS is missing or differs", since, reason)
        else:
            yield Problem("NATS_UNAVAILABLE", f"the bridge cannot use NATS: {reason}", since, reason)
    if receiver["state"] == "UNAVAILABLE" and (waiting := notifications["pending"] + notifications["processing"]):
        failures = count_of(receiver["failures_in_a_row"], "attempt")
        wait = count_of(waiting, "notification waits", "notifications wait", capped=notifications["capped"])
        yield Problem(
            "RECEIVER_UNAVAILABLE",
            f"the circuit to the receiver is open after {failures} in a row that failed, and {wait}",
            receiver["unavailable_since"],
            receiver["last_error"],
        )


def _worker_problems(status: Mapping[str, Any]) -> Iterator[Problem]:
    workers = status["workers"]
    known = {worker["worker"] for worker in workers}
    for name in WORKERS:
        if name not in known and name != SWEEP:
            yield Problem("WORKER_LATE", f"{name} has never reported a run")
    for worker in workers:
        name, error, since = worker["worker"], worker["error"], worker["last_success_at"]
        if worker["late"]:
            ago = count_of(round(worker["seconds_since"]), "second")
            yield Problem("WORKER_LATE", f"{name} last ran {ago} ago", worker["finished_at"], error)
        elif worker["outcome"] == "FAILED":
            yield Problem("WORKER_FAILED", f"{name} failed: {error}", since, error)
        elif worker["outcome"] == "DEGRADED" and not (status["stream"]["state"] == "DOWN" and name in _NATS_WORKERS):
            yield Problem("WORKER_DEGRADED", f"{name} waits for something that it needs: {error}", since, error)


# The stages of `settled`, the worker that ends each, and what the problem says.
_LATE_STAGES = {
    "transactions": (None, "TRANSACTION_OPEN", "a transaction that writes changes has been running for {age}"),
    "times": (
        "expire_entitlements",
        "TIMES_OVERDUE",
        "a start or an end of an entitlement has been due for {age}, and is not recorded",
    ),
    "outbox": ("relay_outbox", "EVENTS_OLD", "the oldest change whose event is not published was made {age} ago"),
    "stream": (
        "bridge_events",
        "EVENTS_UNCONFIRMED",
        "the oldest change whose event is published and has not arrived was made {age} ago",
    ),
    "notifications": (
        "deliver_notifications",
        "NOTIFICATIONS_OVERDUE",
        "the oldest change whose notification is not sent was made {age} ago",
    ),
}


def _late_changes(status: Mapping[str, Any], settings: ProblemSettings) -> Iterator[Problem]:
    """Yield each stage whose oldest change is late. So the status is never OK while `settled` is old (W4).

    A change may wait for the next start of a worker that ends when it is idle; the limit is counted from then on.
    """
    now = datetime.fromisoformat(status["at"])
    errors = {"notifications": next((group["cause"] for group in status["notifications"]["waiting"]), None)}
    for stage, (worker, code, message) in _LATE_STAGES.items():
        since = status["settled"]["oldest"][stage]
        age = 0.0 if since is None else (now - datetime.fromisoformat(since)).total_seconds()
        delay = settings.schedule.delay_seconds(worker) if worker else 0.0
        if age >= settings.settled_age_seconds + delay:
            yield Problem(code, message.format(age=count_of(round(age), "second")), since, errors.get(stage))


def _loss_problems(status: Mapping[str, Any], settings: ProblemSettings) -> Iterator[Problem]:
    confirmation = status["confirmation"]
    shown_after = datetime.fromisoformat(status["at"]) - timedelta(seconds=settings.loss_seconds)
    if too_old := confirmation["too_old"]:
        events = count_of(too_old, "lost event is", "lost events are")
        message = f"{events} too old to be published again without a person"
        yield Problem("EVENTS_TOO_OLD", message, confirmation["too_old_since"])
    for loss in confirmation["losses"]:
        if loss["completed_at"] is None or datetime.fromisoformat(loss["detected_at"]) > shown_after:
            sequences = (
                f"{loss['first_sequence']} to {loss['last_sequence']}" if loss["last_sequence"] else "the last ones"
            )
            events = count_of(loss["events_lost"], "event")
            yield Problem(
                "STREAM_HISTORY_LOST",
                f"the stream lost messages ({loss['cause']}, sequences {sequences}), with {events} that the outbox had",
                loss["detected_at"],
            )
    last, waiting = confirmation["last_republished_at"], confirmation["republished"]
    if waiting or (last is not None and datetime.fromisoformat(last) > shown_after):
        events = count_of(confirmation["republished_last_hour"], "event was lost", "events were lost")
        yield Problem(
            "EVENTS_LOST", f"{events} by the stream and published again; {waiting} have not arrived yet", last
        )
    since = confirmation["unchecked_since"]
    unchecked = timedelta(0) if since is None else datetime.fromisoformat(status["at"]) - datetime.fromisoformat(since)
    limit = _UNCHECKED_SECONDS + settings.schedule.interval_seconds("relay_outbox")
    if unchecked.total_seconds() > limit:
        seconds = count_of(round(unchecked.total_seconds()), "second")
        message = f"published events have not been compared with the inbox for {seconds}"
        yield Problem("EVENTS_UNCHECKED", message, since)


def _flow_problems(status: Mapping[str, Any], settings: ProblemSettings) -> Iterator[Problem]:
    lag = status["stream"]["consumer_lag"]
    if lag is not None and lag > settings.consumer_lag:
        since = status["settled"]["oldest"]["stream"]
        yield Problem("CONSUMER_LAG", f"the bridge has not acknowledged {count_of(lag, 'message')}", since)
    for name, leases in status["leases"].items():
        if expired := leases["expired"]:
            released = "it" if expired == 1 else "them"
            yield Problem(
                "LEASES_EXPIRED",
                f"{count_of(expired, 'lease')} of {name} expired: a worker stopped without releasing {released}",
                leases["expired_since"],
            )


def _repair_problems(status: Mapping[str, Any]) -> Iterator[Problem]:
    dead_letters, read_model, partitions = status["dead_letters"], status["read_model"], status["partitions"]
    if dead_letters["open"]:
        open_, capped, groups = dead_letters["open"], dead_letters["capped"], dead_letters["groups"]
        message = count_of(open_, "dead letter is open", "dead letters are open", capped=capped)
        since = min((group["first_at"] for group in groups), default=None)
        yield Problem("DEAD_LETTERS", message, since, next((group["cause"] for group in groups), None))
    if wrong := (read_model["ahead"] or 0) + (read_model["wrong"] or 0):
        message = f"{count_of(wrong, 'row')} of the read model {'is' if wrong == 1 else 'are'} wrong; rebuild it"
        yield Problem("READ_MODEL_DIFFERS", message, read_model["measured_at"])
    if partitions["months_ahead"] < _MIN_MONTHS_AHEAD or partitions["rows_in_default"]:
        months, rows = count_of(max(0, partitions["months_ahead"]), "month"), partitions["rows_in_default"]
        message = f"the audit has partitions for {months} ahead, and {count_of(rows, 'row')} without one"
        yield Problem("PARTITIONS_MISSING", message)
    if failed := status["commands"]["failed_last_day"]:
        message = f"{count_of(failed, 'command of an operator', 'commands of operators')} failed in the last day"
        last = status["commands"]["last_failure"] or {"at": None, "error": None}
        yield Problem("COMMANDS_FAILED", message, last["at"], last["error"])


def _client_problems(status: Mapping[str, Any], settings: ProblemSettings) -> Iterator[Problem]:
    """Yield the clients that expire soon. A client that has expired is reported for a day."""
    count, soonest = status["clients"]["expiring"], status["clients"]["soonest"]
    if not count:
        return
    first, ends = soonest[0], [_describe_end(client) for client in soonest]
    more = [count_of(count - len(soonest), "other")] if count > len(soonest) else []
    since = datetime.fromisoformat(first["expires_at"]) - timedelta(days=settings.client_expiry_days)
    message = f"{count_of(count, 'client expires', 'clients expire')} soon, or expired: {', '.join([*ends, *more])}"
    yield Problem("CLIENT_EXPIRES", message, format_time(since))


def _describe_end(client: Mapping[str, Any]) -> str:
    seconds = abs(client["seconds_left"])
    days, hours = seconds // (24 * 60 * _MINUTES), seconds // (60 * _MINUTES)
    time = count_of(int(days), "day") if days else count_of(int(hours), "hour") if hours else "less than an hour"
    end = f"in {time}" if client["seconds_left"] > 0 else f"{time} ago"
    return f"{client['name']} ({client['client_id']}) {end}"
