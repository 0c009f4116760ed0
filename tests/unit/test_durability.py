"""T4, W1: doctor explains what each combination of replicas and sync_interval loses."""

from __future__ import annotations

import socket

import pytest

from grantwire_cli.checks.findings import Level
from infra.local.doctor.durability import ServerSync, check_durability, explain

ALWAYS = ServerSync("n1", is_always=True, interval_seconds=120)
LATE = ServerSync("n2", is_always=False, interval_seconds=10)


@pytest.mark.parametrize(
    ("replicas", "servers", "level", "message"),
    [
        (1, [ALWAYS], Level.OK, "a lost disk takes the stream with it"),
        (1, [LATE], Level.WARNING, "a server that loses power can lose"),
        (2, [ALWAYS] * 2, Level.OK, "survives the loss of 0 servers with"),
        (3, [ALWAYS] * 3, Level.OK, "survives the loss of 1 server with"),
        (5, [ALWAYS] * 5, Level.OK, "survives the loss of 2 servers with"),
        (3, [ALWAYS, ALWAYS, LATE], Level.WARNING, "sync_interval 10 s of n2: servers that lose power together"),
    ],
)
def test_each_combination_is_explained(replicas: int, servers: list[ServerSync], level: Level, message: str) -> None:
    """T4: one server that writes late is enough for a warning, and replicas tolerate less than half of them."""
    found = explain(replicas, servers, is_local=False)
    assert found.level is level
    assert message in found.message


def test_address_that_cannot_be_read_is_named() -> None:
    """T4: a port on which nothing listens, and text that is no address; no server of the stream is then known."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    findings = list(check_durability(3, f"{address}, n1:8222", is_local=True))
    assert {finding.level for finding in findings} == {Level.WARNING}
    assert [finding.message.partition(": ")[0] for finding in findings] == [
        f"sync_interval cannot be read at {address}",
        "sync_interval cannot be read at n1:8222",
        "sync_interval is known of 0 of 3 servers of the event stream",
    ]
