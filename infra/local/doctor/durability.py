"""Explains what a loss of power costs: when NATS writes to the disk, and how many replicas the event stream has (W1).

No request of JetStream returns `sync_interval`. The monitoring endpoint of each server does, at /varz.
"""

from __future__ import annotations

import http.client
import json
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire_cli.checks.findings import Finding, ok, warning
from grantwire_cli.wording import count_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CHECK = "durability"
VARIABLE = "NATS_MONITORING_URL"
TIMEOUT_SECONDS = 5
PAGE = "docs/events.md#what-a-loss-of-power-costs"
ALWAYS = f"set jetstream {{ sync_interval: always }} in the configuration of nats-server; cost: {PAGE}"
HOW_TO_SEE = (
    f"set {VARIABLE} to the monitoring address of each server, separated by commas; "
    "or read jetstream.config of http://HOST:8222/varz: sync_always must be true"
)


@dataclass(frozen=True)
class ServerSync:
    """When one server writes acknowledged messages to its disk: before it acknowledges them, or at an interval."""

    name: str
    is_always: bool
    interval_seconds: float


def check_durability(replicas: int, monitoring: str, *, is_local: bool) -> Iterator[Finding]:
    """Yield the findings about a stream with this number of replicas.

    `monitoring` are the monitoring addresses of the servers, separated by commas. A local stack writes at an interval
    on purpose, so that is a warning elsewhere only.
    """
    servers = []
    for url in filter(None, (part.strip() for part in monitoring.split(","))):
        try:
            servers.append(read_sync(url))
        except (OSError, ValueError, http.client.HTTPException) as error:
            yield warning(CHECK, f"sync_interval cannot be read at {url}: {error}", HOW_TO_SEE)
    if servers:
        yield explain(replicas, servers, is_local=is_local)
    if len(servers) < replicas:
        known = f"{len(servers)} of {count_of(replicas, 'server')}"
        yield warning(CHECK, f"sync_interval is known of {known} of the event stream", HOW_TO_SEE)


def read_sync(url: str) -> ServerSync:
    """Read when the server with this monitoring address writes to the disk.

    Raises OSError, HTTPException or ValueError if the response is not that of a server with JetStream.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError("the address must begin with http:// or https://")
    with urllib.request.urlopen(f"{url.rstrip('/')}/varz", timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
        report: Any = json.load(response)
    try:
        settings = report["jetstream"]["config"]
        return ServerSync(
            name=str(report["server_name"]),
            is_always=bool(settings.get("sync_always")),  # left out if it is false
            interval_seconds=settings["sync_interval"] / 1e9,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("it reports no settings of JetStream") from error


def explain(replicas: int, servers: Sequence[ServerSync], *, is_local: bool) -> Finding:
    """Return what the event stream loses with the power of its servers, and the setting to change."""
    copies = count_of(replicas, "replica")
    late = [server for server in servers if not server.is_always]
    if not late:
        return ok(
            CHECK, f"{copies}, sync_interval always: on disk before the acknowledgement; {_without_disk(replicas)}"
        )
    names = ", ".join(server.name for server in late)
    interval = f"{max(server.interval_seconds for server in late):g} s"
    message = (
        f"{copies}, sync_interval {interval} of {names}: {_power_loss(replicas)} can lose the events that NATS "
        f"acknowledged in the last {interval}. Grantwire publishes them again (W1), out of order for other readers"
    )
    return ok(CHECK, message) if is_local else warning(CHECK, message, ALWAYS)


def _power_loss(replicas: int) -> str:
    """Return which loss of power costs messages that are not on disk."""
    if replicas == 1:
        return "a server that loses power"
    return "servers that lose power together, or one of them and then another fault,"


def _without_disk(replicas: int) -> str:
    """Return what a server's disk takes with it."""
    if replicas == 1:
        return "a lost disk takes the stream with it, and Grantwire publishes again what the outbox has (W1)"
    return f"the stream survives the loss of {count_of((replicas - 1) // 2, 'server')} with the disk"
