"""Tasks of a Celery worker, on the application of the example.

`REDIS_URL=… celery -A layers.idempotency.tests.support.celery_worker worker`. A test sees in lists of Redis which tasks
have started and which effects they had, and lets them continue with `go`.
"""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery.signals import task_postrun, worker_ready

from grantwire_idempotency import RedisStore, argument, connect_redis, idempotent
from grantwire_idempotency.errors import RetryableError
from layers.idempotency.examples.celery_tasks import app, store

if TYPE_CHECKING:
    from celery import Task

    from grantwire_idempotency import Claim

client = connect_redis(os.environ["REDIS_URL"])
app.conf.broker_transport_options = {"visibility_timeout": int(os.environ.get("VISIBILITY_TIMEOUT", "3600"))}
app.conf.task_soft_time_limit = None  # a task has the limits that its test gives it
LEASE = timedelta(minutes=10)
RETRY: dict[str, Any] = {"autoretry_for": (RetryableError, OSError), "default_retry_delay": 0.1, "max_retries": None}


class InterruptedStore(RedisStore):
    """A store that does not respond to the first record of a key, until a time limit ends the call."""

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `Store`."""
        if client.rpush(f"records:{claim.key.value}", "call") == 1:
            time.sleep(60)
        super().store_result(claim, result, ttl, order_ttl)


def work(order: str) -> str:
    """Announce the run, wait until the test lets it continue, and charge."""
    client.rpush("started", f"{order} {os.getpid()}")
    while client.lpop(f"go:{order}") is None:
        time.sleep(0.01)
    client.rpush("effects", order)
    return f"receipt-{order}"


@app.task(name="wait", **RETRY)
@idempotent(store, key=lambda order: order, name="wait", lease=LEASE)
def wait(order: str) -> str:
    """Do the work."""
    return work(order)


@app.task(name="ignore_signals", **RETRY)
@idempotent(store, key=lambda order: order, name="ignore-signals", lease=LEASE)
def ignore_signals(order: str) -> str:
    """Do the work in a process that does not end by itself."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        return work(order)
    finally:
        signal.signal(signal.SIGTERM, before)


@app.task(name="record", **RETRY)
@idempotent(InterruptedStore(client), key=lambda order: order, name="record", lease=LEASE)
def record(order: str) -> str:
    """Do the work, and be interrupted while its result is stored."""
    return work(order)


@app.task(name="fail", **RETRY)
@idempotent(store, key=lambda order, _failures: order, name="fail", lease=LEASE)
def fail(order: str, failures: int) -> str:
    """Fail a number of times."""
    if int(str(client.rpush(f"attempts:{order}", "attempt"))) <= failures:
        raise OSError("the payment provider is unavailable")
    client.rpush("effects", order)
    return f"receipt-{order}"


@app.task(name="ask_again", bind=True, **RETRY)
@idempotent(store, key=argument("order"), name="ask-again", lease=LEASE)
def ask_again(task: Task[Any, Any], order: str) -> str:
    """Ask Celery for a retry in the middle of the first run."""
    if task.request.retries == 0:
        raise task.retry(countdown=0.1)
    client.rpush("effects", order)
    return f"receipt-{order}"


@task_postrun.connect
def kill_before_acknowledgement(**_: Any) -> None:
    """Kill the process of the task, if the test says so: its result is stored, and its message is not acknowledged."""
    if client.lpop("kill") is not None:
        client.rpush("killed", os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)


@worker_ready.connect
def announce(**_: Any) -> None:
    """Say that the worker takes tasks."""
    client.rpush("ready", os.getpid())
