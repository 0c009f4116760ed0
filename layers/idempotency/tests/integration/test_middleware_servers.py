"""C29: the middleware in real servers (uvicorn for ASGI, wsgiref for WSGI), two processes for each protocol."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from infra.local.system.processes import wait_until
from tests.support.concurrency import run_concurrently
from tests.support.paths import LIBRARY, ROOT
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from layers.idempotency.tests.integration.harness import PostgresHarness, RedisHarness

pytestmark = newest_postgres

PROTOCOLS = ("asgi", "wsgi")
STORES = ("postgres", "redis")
CLIENTS = 100


@dataclass(frozen=True)
class Response:
    """A response that a client got."""

    status: int
    headers: dict[str, str]
    body: bytes


class Site:
    """Servers of one application, and the file to which its work adds lines."""

    def __init__(self, protocol: str, postgres: str, redis: str, folder: Path) -> None:
        self._arguments = (protocol, postgres, redis, str(folder))
        self._effects, self._go = folder / "effects", folder / "go"
        self._resources = ExitStack()

    def start(self) -> tuple[subprocess.Popen[str], int]:
        """Start a server; return its process and its port."""
        process = subprocess.Popen(
            [sys.executable, "-m", "layers.idempotency.tests.support.http_server", *self._arguments],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{LIBRARY}{os.pathsep}{ROOT}"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._resources.enter_context(process)
        self._resources.callback(process.kill)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    def let_work_end(self) -> None:
        """Let the work that waits end, now and later."""
        self._go.touch()

    def hold_work(self) -> None:
        """Let the work wait again."""
        self._go.unlink(missing_ok=True)

    def effects(self) -> list[str]:
        """Return the effects so far."""
        return self._effects.read_text().splitlines() if self._effects.exists() else []

    def close(self) -> None:
        """End every server."""
        self.let_work_end()
        self._resources.close()


def send(port: int, path: str, key: str, *, body: str = "{}", user: str = "ann") -> Response:
    """Send a request and return the response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, body, {"Idempotency-Key": key, "X-User": user})
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Response(response.status, headers, response.read())
    finally:
        connection.close()


@pytest.fixture(scope="module", params=PROTOCOLS)
def site(
    request: pytest.FixtureRequest,
    open_postgres: PostgresHarness,
    open_redis: RedisHarness,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    """Return the application of one protocol."""
    site = Site(request.param, open_postgres.url, open_redis.url, tmp_path_factory.mktemp(request.param))
    yield site
    site.close()


@pytest.fixture(scope="module")
def ports(site: Site) -> tuple[int, int]:
    """Return the ports of two servers with the same stores."""
    return site.start()[1], site.start()[1]


@pytest.fixture
def key(site: Site) -> str:
    """Return a key that no other test uses."""
    site.hold_work()
    return uuid.uuid4().hex


@pytest.mark.parametrize("store", STORES)
def test_concurrent_requests_have_one_effect_and_one_response(
    site: Site, ports: tuple[int, int], store: str, key: str
) -> None:
    """100 clients send the same request to two processes, and repeat it while the first one runs.

    Its work ends when every other client had to repeat.
    """
    before = len(site.effects())
    conflicts: list[Response] = []

    def insist(number: int) -> Response:
        while (response := send(ports[number % 2], f"/{store}/wait", key)).status == 409:
            conflicts.append(response)
            if len(conflicts) >= CLIENTS:
                site.let_work_end()
        return response

    responses = run_concurrently(CLIENTS, insist)
    (effect,) = site.effects()[before:]
    assert {(response.status, response.body) for response in responses} == {(201, json.dumps({"run": effect}).encode())}
    assert sum("idempotent-replayed" not in response.headers for response in responses) == 1
    assert {response.headers["retry-after"] for response in conflicts} == {"1"}


def test_repeat_has_the_stored_headers_and_another_request_is_refused(
    site: Site, ports: tuple[int, int], key: str
) -> None:
    """On the wire; the details are unit tests."""
    first, repeat = (send(port, "/postgres/work", key) for port in ports)
    assert first.headers["set-cookie"] == "session=1"
    assert repeat.headers["idempotent-replayed"] == "true"
    assert repeat.headers["location"] == "/orders/1"
    assert "set-cookie" not in repeat.headers
    assert repeat.headers["content-length"] == str(len(first.body))
    assert (repeat.status, repeat.body) == (first.status, first.body)
    assert send(ports[1], "/postgres/work", key, body="[]").status == 422
    assert send(ports[1], "/postgres/work?x=1", key).status == 422
    assert send(ports[1], "/postgres/work", key, user="bob").body != first.body
    assert len([effect for effect in site.effects() if effect in repeat.body.decode()]) == 1


@pytest.mark.parametrize("store", STORES)
def test_killed_server_blocks_its_key_until_the_lease_ends(
    request: pytest.FixtureRequest, site: Site, ports: tuple[int, int], store: str, key: str
) -> None:
    """Then a repeat runs, because nobody knows how far the work came."""
    before = len(site.effects())
    process, port = site.start()
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        run_concurrently(2, lambda number: send(port, f"/{store}/wait", key) if number else kill(process, site, before))
    site.let_work_end()
    assert send(ports[0], f"/{store}/wait", key).status == 409
    harness: Any = request.getfixturevalue(f"open_{store}")
    harness.advance(timedelta(hours=1))
    second, third = send(ports[0], f"/{store}/wait", key), send(ports[1], f"/{store}/wait", key)
    assert (second.status, third.status, third.body) == (201, 201, second.body)
    assert len(site.effects()) == before + 2


def kill(process: subprocess.Popen[str], site: Site, before: int) -> None:
    """Kill a server in the middle of its work."""
    assert wait_until(lambda: len(site.effects()) > before, 60)
    process.kill()
    process.wait(60)


@pytest.mark.parametrize("store", STORES)
def test_client_that_disconnects_gets_the_response_with_its_repeat(
    site: Site, ports: tuple[int, int], store: str, key: str
) -> None:
    """The work ends without it, and is not told."""
    before = len(site.effects())
    connection = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=60)
    connection.request("POST", f"/{store}/wait", "{}", {"Idempotency-Key": key, "X-User": "ann"})
    assert wait_until(lambda: len(site.effects()) > before, 60)
    connection.close()
    assert send(ports[1], f"/{store}/wait", key).status == 409
    site.let_work_end()
    while (repeat := send(ports[0], f"/{store}/wait", key)).status == 409:
        pass
    assert repeat.status == 201
    assert repeat.headers["idempotent-replayed"] == "true"
    assert len(site.effects()) == before + 1


def test_store_that_is_down_decides_with_its_fail_mode(site: Site, ports: tuple[int, int], key: str) -> None:
    """CLOSED responds 503 and runs nothing; OPEN runs."""
    before = len(site.effects())
    closed = send(ports[0], "/closed/work", key)
    assert (closed.status, closed.headers["retry-after"]) == (503, "1")
    assert len(site.effects()) == before
    assert send(ports[0], "/open/work", key).status == 201
    assert len(site.effects()) == before + 1
