"""What a stack costs a month on AWS, for a rate of changes: arithmetic that everyone can repeat (X4).

Not included are PostgreSQL, NATS, the network (NAT gateway, endpoints, transfer), taxes and free tiers. A test compares
the constants with the template; docs/costs.md is written from this module.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

HOURS = 730  # a month, as AWS counts it
MINUTES = HOURS * 60
SECONDS = MINUTES * 60
MODES = ("always-on", "economical")

# Workers that run all the time in the mode always-on, with how long each waits for more work in the mode economical.
FLOW = {"relay_outbox": 0.0, "bridge_events": 3.0, "deliver_notifications": 5.0}
IDLE = ("record_advisories", "expire_entitlements", "run_operator_commands")
# An invocation that runs all the time.
RUN_SECONDS = 63.0
# Of the template: alarms on one metric, alarms that read one metric of every function, and metrics that workers write.
ALARMS = 29
QUERY_ALARMS = 2
FUNCTIONS = 23
WORKER_METRICS = 35
SECRETS = 5


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars, without discounts for volume: list prices of us-east-1, as of PRICES_OF. Compare yours."""

    gigabyte_second: float = 0.0000166667
    million_invocations: float = 0.20
    million_requests: float = 3.50
    logs_gigabyte: float = 0.50
    metric: float = 0.30
    alarm: float = 0.10
    secret: float = 0.40


PRICES_OF = "June 2025"
# arm64 is cheaper by this factor.
ARM64 = 0.8


@dataclass(frozen=True, slots=True)
class Load:
    """What a stack has to do, and how fast a function of 512 MB does it. The last four are estimates; measure yours."""

    changes_per_second: float = 0.0
    reads_per_change: float = 2.0
    clients: int = 5
    mode: str = "always-on"
    worker_minutes: int = 1
    memory_mb: int = 512
    request_ms: float = 20.0
    idle_run_seconds: float = 0.5
    events_per_second: float = 300.0
    log_bytes: int = 1_800


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a month, by item, and the billed time that they come from."""

    items: Mapping[str, float]
    worker_seconds: float
    request_seconds: float
    invocations: float
    details: Mapping[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """The sum of all items."""
        return sum(self.items.values())

    def as_dict(self) -> dict[str, object]:
        """Return what the command prints as JSON."""
        return {**asdict(self), "total": self.total}


def worker_seconds(load: Load) -> float:
    """Return the billed seconds of all workers in a month.

    A worker that runs all the time is billed for its whole budget. One that ends when it is idle is billed for its
    start, the wait for more work and the work itself, and at most for the time between two starts.
    """
    busy = 60 * load.worker_minutes * load.changes_per_second / load.events_per_second
    starts, longest = MINUTES / load.worker_minutes, 60 * load.worker_minutes + RUN_SECONDS - 60
    flow = sum(
        RUN_SECONDS * MINUTES
        if load.mode == "always-on"
        else min(longest, load.idle_run_seconds + linger + busy) * starts
        for linger in FLOW.values()
    )
    sweep = HOURS * load.idle_run_seconds
    return flow + len(IDLE) * load.idle_run_seconds * starts + sweep


def worker_starts(load: Load) -> float:
    """Return how often workers are started in a month."""
    often = MINUTES / load.worker_minutes
    return len(FLOW) * (MINUTES if load.mode == "always-on" else often) + len(IDLE) * often + HOURS


def monthly(load: Load, prices: Prices) -> Costs:
    """Return the costs of a month."""
    requests = load.changes_per_second * (1 + load.reads_per_change) * SECONDS
    authorizations = min(requests, load.clients * MINUTES)  # a policy is cached for a minute
    request_seconds = (requests + authorizations) * load.request_ms / 1000
    workers = worker_seconds(load)
    gigabytes = load.memory_mb / 1024
    invocations = requests + authorizations + worker_starts(load)
    # An access log, the line of the request, and the lines of Lambda for each invocation.
    logs = invocations * load.log_bytes / 1e9
    routes = 2 * 3 if requests else 0  # two metrics for each route and outcome: a change and two kinds of reads
    items = {
        "Lambda, workers": workers * gigabytes * prices.gigabyte_second,
        "Lambda, requests": request_seconds * gigabytes * prices.gigabyte_second,
        "Lambda, invocations": invocations / 1e6 * prices.million_invocations,
        "API Gateway": requests / 1e6 * prices.million_requests,
        "Logs": logs * prices.logs_gigabyte,
        "Metrics": (WORKER_METRICS + routes) * prices.metric,
        "Alarms": (ALARMS + QUERY_ALARMS * FUNCTIONS) * prices.alarm,
        "Secrets": SECRETS * prices.secret,
    }
    details = {"requests": requests, "authorizations": authorizations, "log_gigabytes": logs}
    return Costs(items, workers, request_seconds, invocations, details)
