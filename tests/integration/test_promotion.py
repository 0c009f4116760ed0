"""Requests to a PostgreSQL that is in recovery, as the new primary is until the end of its promotion."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.wiring.routes.check_entitlement import CheckRuntime
from tests.support.checks import CheckClient
from tests.support.client import Client, item
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from infra.local.servers.postgres import PostgresServer
    from tests.support.client import Response

SESSIONS = "SELECT FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


@contextmanager
def in_recovery(server: PostgresServer) -> Iterator[Callable[[], None]]:
    """Restart the server as a standby; yield a function that promotes it, which is called at the end at the latest."""
    server.stop()
    (server.folder / "data" / "standby.signal").touch()
    server.start()

    def promote() -> None:
        with psycopg.connect(server.url(), autocommit=True) as control:
            (in_recovery,) = control.execute("SELECT pg_is_in_recovery()").fetchone() or (None,)
            if in_recovery:
                assert control.execute("SELECT pg_promote(true, 60)").fetchone() == (True,)

    try:
        yield promote
    finally:
        promote()


def grant(url: str) -> tuple[Client, Callable[[], Response]]:
    """Return a client that grants, which writes: SQLSTATE 25006 during recovery."""
    client = Client(url)
    return client, lambda: client.grant("promoted-1", user_id="promoted")


def change_batch(url: str) -> tuple[Client, Callable[[], Response]]:
    """Return a client that sends a batch: SQLSTATE 25006, too."""
    client = Client(url)
    return client, lambda: client.batch(item("promoted-2", user_id="promoted-2"))


def check(url: str) -> tuple[CheckClient, Callable[[], Response]]:
    """Return a client that checks; its limits are in an unlogged table, with SQLSTATE 0A000 during recovery."""
    client = CheckClient(url)
    client.runtime = CheckRuntime.build({**PLAINTEXT, "DATABASE_URL": url})
    return client, client.check


@pytest.mark.parametrize("connect", [grant, change_batch, check])
def test_request_during_a_promotion_is_unavailable(
    server: PostgresServer, connect: Callable[[str], tuple[Client | CheckClient, Callable[[], Response]]]
) -> None:
    """503 with Retry-After, never 500, and the connection is dropped, because the next may reach the new primary."""
    client, send = connect(server.url())
    with client, in_recovery(server) as promote:
        for _ in range(2):
            response = send()
            assert (response.status, response.code) == (503, "UNAVAILABLE")
            assert int(response.headers["Retry-After"]) >= 1
            with psycopg.connect(server.url(), autocommit=True) as control:
                assert not control.execute(SESSIONS).fetchall()
        promote()
        assert send().status == 200
