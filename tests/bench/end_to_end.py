"""The latency of a grant on a deployed stack: from its commit to the stream and to the SENT notification."""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import TYPE_CHECKING

from infra.local.stack.embedded import EmbeddedStack
from tests.bench.constant_rate import send_grants
from tests.bench.event_times import read_event_times
from tests.bench.results import Chart, Finding, Line, Section
from tests.e2e.aws import invoke

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress
    from tests.bench.constant_rate import Responses
    from tests.bench.effort import Effort
    from tests.bench.event_times import EventTimes
    from tests.bench.servers import Servers

TITLE = "From a grant to its notification"
RATE = 20.0
STREAM = "commit → stream"
SENT = "commit → SENT"

_WORKERS = ("relay-outbox", "bridge-events", "deliver-notifications", "record-advisories")
_WARM_UP = 500
# The previous invocation of a worker runs for three more seconds, and the log with the start times has whole seconds.
_HANDOVER_SECONDS = 5.0
_FIRED = re.compile(r"^(\S+ \S+) INFO .* Lambda \S+-relay-outbox: dispatched$", re.MULTILINE)
_SHARES = (*(number / 100 for number in range(1, 100)), 0.995, 0.999)
_METHOD = f"""\
A separate stack, deployed as by `make up`, with fsync on, receives {RATE:.0f} grants per second over HTTP, evenly
spaced, each for a new user. Notifications go to the log. All clocks are those of one machine. The stream time is
JetStream's; the commit and SENT times are those in the rows. They are taken shortly before the commit, so commit →
stream is slightly shorter than shown. Each worker has two warm environments that take turns every minute: one starts,
and three seconds later the other ends. A handover is the five seconds in which both happen."""
_HTTP = """\
The response to a grant took {:.1f} ms (p50) and {:.1f} ms (p99) from the time when the grant was due, through the
emulator's API Gateway. The longest time from commit to SENT was {:.0f} ms."""


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Send grants at a constant rate, then read when each was committed, stored and sent."""
    if not effort.end_to_end_seconds:
        return Section(TITLE, remarks=["Not measured in a smoke run."])
    stack = EmbeddedStack(servers.nats.state.with_name("end_to_end"), progress=progress)
    try:
        stack.up()
        with progress.step("Warming up the functions"):
            _warm_up(stack)
        with progress.step(f"{TITLE}: {RATE:.0f} grants per second for {effort.end_to_end_seconds:.0f} s"):
            responses = send_grants(stack, "measured", count=round(RATE * effort.end_to_end_seconds), rate=RATE)
            times = read_event_times(stack, responses.users)
        return _section(responses, times, _read_handovers(stack))
    finally:
        stack.down()  # its files are removed with those of the run, after a failed run has kept the logs


def _warm_up(stack: EmbeddedStack) -> None:
    """Start the environments that the measurement needs: for every caller, and for the first run of each worker."""
    for name in _WORKERS:
        invoke(stack, name, {"budget": "1s", "until": "idle"})
    send_grants(stack, "warm", count=_WARM_UP, rate=10 * RATE)


def _read_handovers(stack: EmbeddedStack) -> list[float]:
    """Return the times at which the schedule started the relay, from the emulator's log, which has local time."""
    moments = _FIRED.findall(stack.aws.log.read_text(errors="replace"))
    return [dt.datetime.fromisoformat(moment).astimezone().timestamp() for moment in moments]


def _section(responses: Responses, times: Sequence[EventTimes], handovers: Sequence[float]) -> Section:
    hops = {
        STREAM: [(event.stream - event.commit) * 1e3 for event in times],
        "stream → SENT": [(event.sent - event.stream) * 1e3 for event in times],
        SENT: [(event.sent - event.commit) * 1e3 for event in times],
    }
    targets = {(STREAM, 0.5): 10.0, (STREAM, 0.99): 50.0}
    during_handover = [any(0 <= event.commit - start < _HANDOVER_SECONDS for start in handovers) for event in times]
    counts = f"{len(times):,} grants, {len(responses.errors)} errors"
    http = [latency * 1e3 for latency in responses.latencies]
    return Section(
        TITLE,
        findings=[
            Finding("acknowledged, once in stream and inbox, and SENT", counts, "all, no errors", not responses.errors),
            *(_finding(name, hop, q, targets.get((name, q))) for name, hop in hops.items() for q in (0.5, 0.99)),
            *(_handover_finding(name, hops[name], during_handover) for name in (STREAM, SENT)),
        ],
        charts=[_chart(hops)],
        remarks=[
            _METHOD,
            _HTTP.format(quantile(http, 0.5), quantile(http, 0.99), max(hops[SENT])),
            *(f"Error: {error}" for error in responses.errors[:3]),
        ],
    )


def _finding(name: str, hop: Sequence[float], share: float, target: float | None) -> Finding:
    measured = quantile(hop, share)
    title, text = f"{name}, p{share * 100:.0f}", f"{measured:.1f} ms"
    return Finding(title, text) if target is None else Finding.at_most(title, text, measured, target, "ms")


def _handover_finding(name: str, hop: Sequence[float], during_handover: Sequence[bool]) -> Finding:
    inside = [value for value, during in zip(hop, during_handover, strict=True) if during]
    rest = [value for value, during in zip(hop, during_handover, strict=True) if not during]
    title = f"{name}, p99 during handovers"
    if not inside:
        return Finding(title, "no handover in this run")
    measured, usual = quantile(inside, 0.99), quantile(rest, 0.99)
    text = f"{measured:.1f} ms for {len(inside)} grants, {usual:.1f} ms for the others"
    return Finding(title, text, "at most twice the others", measured <= 2 * usual)


def _chart(hops: dict[str, list[float]]) -> Chart:
    lines = tuple(Line(name, tuple((quantile(hop, share), share) for share in _SHARES)) for name, hop in hops.items())
    return Chart("end-to-end", TITLE, "milliseconds", "share of events within", lines, log_x=True)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the lowest value that at least this share of the values does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]
