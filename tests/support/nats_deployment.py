"""NATS with the configuration that docs/deploy.md prints and the user of `make fault`, and connections of its users.

A test imports the fixtures `server` and `deployment`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, Protocol

import nats
import pytest

from infra.local.servers.nats_users import Names, inbox_prefix
from infra.local.system.memory import in_memory
from tests.support.nats_users import ADMIN, READER, NatsWithUsers, configured
from tests.support.plaintext import PLAINTEXT
from tests.support.servers import STATE
from tests.support.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from nats.aio.client import Client

NAMES = Names(faults=True)
API = "$JS.API"
# A denied request gets no response; an allowed one gets it within milliseconds.
SILENCE_SECONDS = 0.3
# The streams and consumers, with the names of template.yaml.
TOPOLOGY_ENVIRON = {
    "ENTITLEMENT_NATS_SUBJECT": NAMES.subject,
    "ENTITLEMENT_NATS_STREAM": NAMES.stream,
    "ENTITLEMENT_NATS_READERS": READER,
    "NOTIFICATION_NATS_STREAM": NAMES.stream,
    "NOTIFICATION_NATS_DURABLE": NAMES.durable,
    "NOTIFICATION_NATS_ADVISORY_STREAM": NAMES.advisory_stream,
}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsWithUsers]:
    """NATS with the users of a deployment, and an unrestricted user to compare with."""
    server = NatsWithUsers(in_memory(STATE) / "nats-permissions", NAMES)
    server.start()
    yield server
    server.destroy()


@pytest.fixture
def deployment(database_url: str, server: NatsWithUsers) -> Iterator[dict[str, str]]:
    """Environment of the workers."""
    environ = {
        **PLAINTEXT,
        **TOPOLOGY_ENVIRON,
        "DATABASE_URL": database_url,
        "NATS_URL": server.url,
        "NATS_PUBLISH_TIMEOUT": "1s",
    }
    yield configured(environ)
    asyncio.run(_delete_streams(server.url_for(ADMIN)))


async def _delete_streams(url: str) -> None:
    client = await nats.connect(url)
    for info in await client.jetstream().streams_info():
        await client.jetstream().delete_stream(str(info.config.name))
    await client.close()


class Session:
    """A connection of one user, which records the permissions that the server denies."""

    def __init__(self, client: Client, denied: list[str]) -> None:
        self.client = client
        self.denied = denied

    async def request(self, subject: str, body: dict[str, Any], seconds: float = WAIT_SECONDS) -> dict[str, Any]:
        """Send a request to JetStream and return the response; raises TimeoutError if there is none in time."""
        data = json.dumps(body).encode() if body else b""
        response = await self.client.request(subject, data, timeout=seconds)
        parsed: dict[str, Any] = json.loads(response.data)
        assert "error" not in parsed, parsed
        return parsed

    async def subscribe(self, subject: str) -> None:
        """Subscribe, and wait until the server has decided."""
        await self.client.subscribe(subject)
        await self.client.flush()
        await asyncio.sleep(0.02)


class Logins(Protocol):
    """A server with the users of a deployment."""

    def login(self, user: str) -> dict[str, Any]:
        """Return the options with which nats-py connects as one user."""


@contextlib.asynccontextmanager
async def open_session(server: Logins, user: str) -> AsyncIterator[Session]:
    """Connect as one user."""
    denied: list[str] = []

    async def record(error: Exception) -> None:
        denied.append(str(error))

    client = await nats.connect(
        **server.login(user), allow_reconnect=False, error_cb=record, inbox_prefix=inbox_prefix(user)
    )
    try:
        yield Session(client, denied)
    finally:
        await client.close()
