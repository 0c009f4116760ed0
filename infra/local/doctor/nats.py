"""Checks of NATS: connection, streams and consumers against the settings, limits, lag and durability."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from grantwire_cli.checks.findings import Finding, ok, problem, warning
from grantwire_cli.wording import count_of
from infra.local.doctor.durability import VARIABLE, check_durability

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grantwire.jetstream.connection import NatsConnection
    from grantwire.jetstream.topology import TopologySettings

CHECK = "NATS"
MIN_PAYLOAD = 64 * 1024  # an event has at most about 2 KiB; a smaller limit is a mistake
MUCH_LAG = 10_000


def check_nats(environ: Mapping[str, str], *, configure: str, is_local: bool = False) -> list[Finding]:
    """Return the findings about NATS, connected as the workers are; `configure` is the command that repairs streams.

    Streams, their limits and duplicate windows, and consumers are compared with the settings, as the workers do it.
    NATS_MONITORING_URL has the monitoring addresses of the servers. `is_local`: the local stack, which writes to the
    disk at an interval on purpose.
    """
    return asyncio.run(_check(environ, configure, is_local=is_local))


async def _check(environ: Mapping[str, str], configure: str, *, is_local: bool) -> list[Finding]:
    from grantwire.errors import GrantwireError  # noqa: PLC0415  # importable only with the layer
    from grantwire.jetstream.connection import NatsConnection  # noqa: PLC0415
    from grantwire.jetstream.settings import NatsSettings  # noqa: PLC0415
    from grantwire.jetstream.topology import TopologySettings  # noqa: PLC0415
    from grantwire.settings import load  # noqa: PLC0415

    topology = load(TopologySettings, environ)
    connection = NatsConnection(load(NatsSettings, environ), name="grantwire-doctor")
    try:
        await connection.connect()
        try:
            client = connection.client
            server = client.connected_url.netloc.rpartition("@")[2] if client.connected_url else "unknown"
            version = client.connected_server_version
            findings = [ok(CHECK, f"NATS {version.major}.{version.minor}.{version.patch} at {server}")]
            if client.max_payload < MIN_PAYLOAD:
                message = f"max_payload is {client.max_payload} bytes, too little for an event with its headers"
                findings.append(problem(CHECK, message, f"set max_payload of nats-server to at least {MIN_PAYLOAD}"))
            findings += await _check_topology(connection, topology, configure)
            if replicas := await _count_replicas(connection, topology.events.stream):
                findings += check_durability(replicas, environ.get(VARIABLE, ""), is_local=is_local)
            return findings
        finally:
            await connection.close()
    except GrantwireError as error:
        return [problem(CHECK, f"NATS is not usable: {error}", "make up, or correct the address and the user")]


async def _check_topology(connection: NatsConnection, topology: TopologySettings, configure: str) -> list[Finding]:
    """Return the differences between streams, consumers and settings; without any, the lag of the bridge."""
    from grantwire.errors import RetryableError  # noqa: PLC0415
    from grantwire.jetstream.topology import verify_topology  # noqa: PLC0415

    try:
        await verify_topology(connection, topology)
    except RetryableError as error:
        text = str(error).removeprefix("NATS topology: ").removesuffix("; invoke configure_streams")
        return [problem("streams", part, configure) for part in text.split("; ")]
    window = topology.events.duplicate_window
    matches = ok("streams", f"streams and consumers match the settings; the duplicate window is {window}")
    with connection.wrap_exceptions():
        consumer = await connection.jetstream.consumer_info(topology.consumer.stream, topology.consumer.durable)
    waiting = (consumer.num_pending or 0) + (consumer.num_ack_pending or 0)
    text = f"{count_of(waiting, 'event waits', 'events wait')} for the bridge"
    if waiting > MUCH_LAG:
        return [matches, warning("lag", text, "grantwire status --watch; docs/runbook.md")]
    return [matches, ok("lag", text)]


async def _count_replicas(connection: NatsConnection, stream: str) -> int | None:
    """Return the number of replicas of a stream, or None if it is missing, which is a finding of the topology."""
    from nats.js.errors import NotFoundError  # noqa: PLC0415  # importable only with the layer

    with connection.wrap_exceptions():
        try:
            return (await connection.jetstream.stream_info(stream)).config.num_replicas or 1
        except NotFoundError:
            return None
