"""C29: the recipe for Celery with a real worker, which is killed, stopped by time limits, and retried."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from celery import Celery
from redis import Redis

from grantwire_idempotency import MemoryStore, idempotent
from infra.local.system.processes import wait_until
from tests.support.paths import PYTHONPATH, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery.result import AsyncResult

    from tests.support.valkey import ValkeyServer

MODULE = "layers.idempotency.tests.support.celery_worker"
OPTIONS = ("--concurrency", "2", "--loglevel", "INFO", "--without-mingle", "--without-gossip", "--without-heartbeat")
SECONDS = 60
# Longer than a command waits for a worker. By default, redis-py 8 reads for five seconds only.
SOCKET_SECONDS = 2 * SECONDS


class Shop:
    """Sends tasks, and controls their runs."""

    def __init__(self, url: str) -> None:
        self.app = Celery(broker=url, backend=url)
        self.redis: Any = Redis.from_url(url, decode_responses=True, socket_timeout=SOCKET_SECONDS)

    def send(self, task: str, *args: Any, **options: Any) -> AsyncResult[Any]:
        """Send a task."""
        return self.app.send_task(task, args, **options)

    def wait_for_start(self, order: str) -> int:
        """Wait until a run of the order has begun, and return the process of the run."""
        started = self.redis.blpop("started", SECONDS)
        assert started is not None, "no run has begun"
        name, process = started[1].split()
        assert name == order
        return int(process)

    def let_continue(self, order: str) -> None:
        """Let a run of the order charge and end."""
        self.redis.rpush(f"go:{order}", "go")

    def expire_claim(self, key: str) -> None:
        """Let the claim of a run that was killed expire."""
        assert self.redis.get(f"idempotency:{key}").startswith("claim:")
        self.redis.pexpire(f"idempotency:{key}", 1)

    def let_visibility_timeout_pass(self) -> None:
        """Make the unacknowledged messages old: a worker looks for them at its start, and then every 100 seconds.

        A worker that is killed while it looks for them keeps a lock for five minutes.
        """
        self.redis.delete("unacked_mutex")
        for tag in self.redis.zrange("unacked_index", 0, -1):
            self.redis.zadd("unacked_index", {tag: 1})

    def effects(self, order: str) -> int:
        """Return how often the order was charged."""
        return int(self.redis.lrange("effects", 0, -1).count(order))

    def close(self) -> None:
        """Close every connection."""
        gc.collect()  # a result of Celery is in a cycle, and cannot be freed without an error once its app is closed
        self.app.close()
        self.redis.close()


@contextmanager
def running_worker(url: str, log: Path, visibility_timeout: str = "3600") -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker with its pool in a group of processes, which is killed at the end."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": PYTHONPATH,
        "REDIS_URL": url,
        "VISIBILITY_TIMEOUT": visibility_timeout,
    }
    command = (sys.executable, "-m", "celery", "-A", MODULE, "worker", *OPTIONS)
    with log.open("wb") as output:
        worker = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
        )
    with worker, Redis.from_url(url, socket_timeout=SOCKET_SECONDS) as client:
        try:
            assert client.blpop(["ready"], SECONDS) is not None, log.read_text()
            yield worker
        finally:
            os.killpg(worker.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def shop(valkey_server: ValkeyServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Return the tasks of a worker that all tests share."""
    shop = Shop(valkey_server.url)
    shop.redis.flushall()
    with running_worker(valkey_server.url, tmp_path_factory.mktemp("celery") / "log"):
        yield shop
    shop.close()


def test_task_keeps_its_name_and_its_arguments_are_checked() -> None:
    """C29: Celery names the task after the function, and refuses wrong arguments before it sends a message."""
    app = Celery("shop", broker="memory://")

    @app.task
    @idempotent(MemoryStore(), key=lambda order, **_: order, name="charge")
    def charge(order: str, total: int = 0) -> str:
        return f"{order} {total}"

    assert charge.name == f"{__name__}.charge"
    assert charge.apply(("o-1",), {"total": 5}).get() == "o-1 5"
    for arguments in ((), ("o-1", 5, "more")):
        with pytest.raises(TypeError, match=r"charge\(\)"):
            charge.apply_async(arguments)


def test_task_that_is_sent_twice_charges_once(shop: Shop) -> None:
    """C29: the second one waits for the first one by retries; a third one comes later."""
    first = shop.send("wait", "o-1")
    shop.wait_for_start("o-1")
    second = shop.send("wait", "o-1")
    assert wait_until(lambda: second.state == "RETRY", SECONDS)
    shop.let_continue("o-1")
    results = [task.get(SECONDS) for task in (first, second, shop.send("wait", "o-1"))]
    assert results == ["receipt-o-1"] * 3
    assert shop.effects("o-1") == 1


def test_killed_process_of_a_task_is_replaced_when_its_claim_expires(shop: Shop) -> None:
    """C29: SIGKILL in the middle of the work; Celery delivers the message again, and retries it meanwhile."""
    task = shop.send("wait", "o-2")
    os.kill(shop.wait_for_start("o-2"), signal.SIGKILL)
    assert wait_until(lambda: task.state == "RETRY", SECONDS)
    shop.expire_claim("wait:o-2")
    shop.wait_for_start("o-2")
    shop.let_continue("o-2")
    assert task.get(SECONDS) == "receipt-o-2"
    assert shop.effects("o-2") == 1


def test_kill_before_the_acknowledgement_charges_once(shop: Shop) -> None:
    """C29: the result is stored, so the message that is delivered again gets it without a run."""
    shop.redis.rpush("kill", "once")
    shop.let_continue("o-3")
    task = shop.send("wait", "o-3")
    assert shop.redis.blpop("killed", SECONDS) is not None
    assert wait_until(lambda: shop.redis.hlen("unacked") == 0 and shop.redis.llen("celery") == 0, SECONDS)
    assert task.get(SECONDS) == "receipt-o-3"
    assert shop.effects("o-3") == 1
    shop.wait_for_start("o-3")
    assert shop.redis.llen("started") == 0


def test_soft_time_limit_releases_the_key(shop: Shop) -> None:
    """C24: the exception is raised in the work; the same task sent again runs at once."""
    task = shop.send("wait", "o-4", soft_time_limit=1)
    shop.wait_for_start("o-4")
    with pytest.raises(SoftTimeLimitExceeded):
        task.get(SECONDS)
    assert shop.effects("o-4") == 0
    shop.let_continue("o-4")
    assert shop.send("wait", "o-4").get(SECONDS) == "receipt-o-4"
    shop.wait_for_start("o-4")
    assert shop.effects("o-4") == 1


def test_soft_time_limit_while_the_result_is_stored_loses_nothing(shop: Shop) -> None:
    """C24: the task fails, but the payment has a receipt, which the same task gets when it is sent again."""
    shop.let_continue("o-5")
    task = shop.send("record", "o-5", soft_time_limit=2)
    with pytest.raises(SoftTimeLimitExceeded):
        task.get(SECONDS)
    shop.wait_for_start("o-5")
    assert shop.redis.llen("records:record:o-5") == 2
    assert shop.send("record", "o-5").get(SECONDS) == "receipt-o-5"
    assert shop.effects("o-5") == 1


def test_hard_time_limit_keeps_the_key_until_the_claim_expires(shop: Shop) -> None:
    """C29: Celery kills a process that does not react to SIGTERM, and does not deliver the message again."""
    task = shop.send("ignore_signals", "o-6", time_limit=1)
    shop.wait_for_start("o-6")
    with pytest.raises(TimeLimitExceeded):
        task.get(SECONDS)
    again = shop.send("ignore_signals", "o-6")
    assert wait_until(lambda: again.state == "RETRY", SECONDS)
    shop.expire_claim("ignore-signals:o-6")
    shop.wait_for_start("o-6")
    shop.let_continue("o-6")
    assert again.get(SECONDS) == "receipt-o-6"
    assert shop.effects("o-6") == 1


def test_failed_attempts_are_retried(shop: Shop) -> None:
    """C29: by `autoretry_for`, and by `self.retry` in the middle of the work."""
    assert shop.send("fail", "o-7", 2).get(SECONDS) == "receipt-o-7"
    assert shop.redis.llen("attempts:o-7") == 3
    assert shop.send("ask_again", "o-8").get(SECONDS) == "receipt-o-8"
    assert (shop.effects("o-7"), shop.effects("o-8")) == (1, 1)


def test_killed_worker_is_replaced_by_another_one(valkey_server: ValkeyServer, tmp_path: Path) -> None:
    """C29: SIGKILL of all its processes; the broker delivers the message again after its visibility timeout."""
    url = valkey_server.url.removesuffix("/0") + "/1"
    shop = Shop(url)
    shop.redis.flushdb()
    try:
        with running_worker(url, tmp_path / "first") as worker:
            task = shop.send("wait", "o-9")
            shop.wait_for_start("o-9")
            os.killpg(worker.pid, signal.SIGKILL)
        shop.let_visibility_timeout_pass()
        with running_worker(url, tmp_path / "second", visibility_timeout="1"):
            assert wait_until(lambda: task.state == "RETRY", SECONDS)
            shop.expire_claim("wait:o-9")
            shop.wait_for_start("o-9")
            shop.let_continue("o-9")
            assert task.get(SECONDS) == "receipt-o-9"
        assert shop.effects("o-9") == 1
    finally:
        shop.close()
