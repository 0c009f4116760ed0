"""The whole way of a right on the deployed stack: from the commit of a grant to the stream, and on until it is SENT."""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import TYPE_CHECKING

from infra.local.stack.embedded import EmbeddedStack
from tests.bench.results import Chart, Finding, Line, Section
from tests.bench.steady import grants
from tests.bench.ways import ways_of
from tests.e2e.aws import invoke

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers
    from tests.bench.steady import Answers
    from tests.bench.ways import Way

TITLE = "From a grant to its notification"
RATE = 20.0
STREAM = "commit → stream"
SENT = "commit → SENT"

_WORKERS = ("relay-outbox", "bridge-events", "deliver-notifications", "record-advisories")
_WARM_UP = 500
# The workers before go on for three seconds more, and the log that tells when the schedules fired has whole seconds.
_HANDOVER_SECONDS = 5.0
_FIRED = re.compile(r"^(\S+ \S+) INFO .* Lambda \S+-relay-outbox: dispatched$", re.MULTILINE)
_SHARES = (*(number / 100 for number in range(1, 100)), 0.995, 0.999)
_HOW = f"""\
A stack of its own, deployed as by `make up`, with fsync on; {RATE:.0f} grants a second over HTTP, evenly spaced, each
for somebody new; notifications go to the log. All times are one machine's: of the stream JetStream's, of commit and
SENT those in the rows, which are taken shortly before the commit, so that commit → stream is a little less than shown.
The workers take turns each minute in two warm environments each: one starts, and three seconds later the other ends. A
handover is the five seconds in which both happen."""
_HTTP = """\
From when it was due, a grant's answer took {:.1f} ms (p50) and {:.1f} ms (p99), through the emulator's API Gateway. The
longest way from commit to SENT took {:.0f} ms."""


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Grant at an even pace, and read afterwards when each grant got where."""
    if not effort.journey_seconds:
        return Section(TITLE, remarks=["Not measured in so short a run."])
    stack = EmbeddedStack(servers.nats.state.with_name("journey"), progress=progress)
    try:
        stack.up()
        with progress.step("Warming up the functions"):
            _warm_up(stack)
        with progress.step(f"{TITLE}: {RATE:.0f} grants a second for {effort.journey_seconds:.0f} s"):
            answers = grants(stack, "journey", count=round(RATE * effort.journey_seconds), rate=RATE)
            ways = ways_of(stack, answers.users)
        return _section(answers, ways, _handovers(stack))
    finally:
        stack.down()  # its files go with the run's, after a look at the logs if something failed


def _warm_up(stack: EmbeddedStack) -> None:
    """Every caller finds a warm function, and every schedule a second environment of a worker that is still busy."""
    for name in _WORKERS:
        invoke(stack, name, {"budget": "1s", "until": "idle"})
    grants(stack, "warm", count=_WARM_UP, rate=10 * RATE)


def _handovers(stack: EmbeddedStack) -> list[float]:
    """When the schedules fired, as the emulator logs it: in local time."""
    moments = _FIRED.findall(stack.aws.log.read_text(errors="replace"))
    return [dt.datetime.fromisoformat(moment).astimezone().timestamp() for moment in moments]


def _section(answers: Answers, ways: Sequence[Way], handovers: Sequence[float]) -> Section:
    hops = {
        STREAM: [(way.stream - way.commit) * 1e3 for way in ways],
        "stream → SENT": [(way.sent - way.stream) * 1e3 for way in ways],
        SENT: [(way.sent - way.commit) * 1e3 for way in ways],
    }
    targets = {(STREAM, 0.5): 10.0, (STREAM, 0.99): 50.0}
    handed = [any(0 <= way.commit - moment < _HANDOVER_SECONDS for moment in handovers) for way in ways]
    counts = f"{len(ways):,} grants, {len(answers.errors)} errors"
    http = [latency * 1e3 for latency in answers.latencies]
    return Section(
        TITLE,
        findings=[
            Finding("acknowledged, in stream and inbox once, and SENT", counts, "all, no errors", not answers.errors),
            *(_finding(name, hop, q, targets.get((name, q))) for name, hop in hops.items() for q in (0.5, 0.99)),
            *(_handover(name, hops[name], handed) for name in (STREAM, SENT)),
        ],
        charts=[_chart(hops)],
        remarks=[
            _HOW,
            _HTTP.format(quantile(http, 0.5), quantile(http, 0.99), max(hops[SENT])),
            *(f"Error: {error}" for error in answers.errors[:3]),
        ],
    )


def _finding(name: str, hop: Sequence[float], share: float, target: float | None) -> Finding:
    measured = quantile(hop, share)
    title, text = f"{name}, p{share * 100:.0f}", f"{measured:.1f} ms"
    return Finding(title, text) if target is None else Finding.at_most(title, text, measured, target, "ms")


def _handover(name: str, hop: Sequence[float], handed: Sequence[bool]) -> Finding:
    inside = [value for value, during in zip(hop, handed, strict=True) if during]
    rest = [value for value, during in zip(hop, handed, strict=True) if not during]
    title = f"{name}, p99 of handovers"
    if not inside:
        return Finding(title, "no handover in this run")
    measured, usual = quantile(inside, 0.99), quantile(rest, 0.99)
    text = f"{measured:.1f} ms of {len(inside)} grants, the rest {usual:.1f} ms"
    return Finding(title, text, "at most twice the rest's", measured <= 2 * usual)


def _chart(hops: dict[str, list[float]]) -> Chart:
    lines = tuple(Line(name, tuple((quantile(hop, share), share) for share in _SHARES)) for name, hop in hops.items())
    return Chart("journey", TITLE, "milliseconds", "share of events within", lines, log_x=True)


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that this share of them does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]
