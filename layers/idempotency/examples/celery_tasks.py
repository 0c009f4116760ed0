"""Celery: a task that is delivered again, because it was sent twice or its worker was killed, charges once.

Start a worker: REDIS_URL=redis://localhost:6379 celery -A celery_tasks worker
Run it with a worker of its own: REDIS_URL=redis://localhost:6379 python celery_tasks.py

    charge o-1
    receipt-o-1
    receipt-o-1
"""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from celery import Celery

from grantwire_idempotency import FailMode, RedisStore, argument, connect_redis, idempotent
from grantwire_idempotency.errors import RetryableError

# shown from here
app = Celery("shop", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])
app.conf.update(
    task_acks_late=True,  # a message stays at the broker until its task has ended,
    task_reject_on_worker_lost=True,  # and returns to the queue if the process of the task is killed
    task_soft_time_limit=60,
    task_time_limit=90,
    worker_redirect_stdouts=False,  # for the demonstration: what a task prints is no log line
)
store = RedisStore(connect_redis(os.environ["REDIS_URL"]))


@app.task(
    name="charge",
    autoretry_for=(RetryableError, OSError),  # another run has the key, or the store or the payment is unavailable
    retry_backoff=True,
    retry_backoff_max=60,
    max_retries=20,
)
@idempotent(
    store,
    key=argument("order"),
    name="charge",
    lease=timedelta(seconds=120),  # longer than task_time_limit: no other run begins before this one has ended
    fail_mode=FailMode.CLOSED,  # if the store is unavailable, charge nothing and retry
)
def charge(order: str) -> str:
    print(f"charge {order}", flush=True)  # send `order` as the Idempotency-Key of the payment provider
    return f"receipt-{order}"


# shown to here
if __name__ == "__main__":
    folder = str(Path(__file__).parent)
    options = ("--concurrency", "1", "--loglevel", "ERROR", "--without-mingle", "--without-gossip")
    command = (sys.executable, "-m", "celery", "--quiet", "--workdir", folder, "-A", "celery_tasks", "worker", *options)
    with subprocess.Popen(command):
        print(charge.delay("o-1").get(timeout=60))
        print(charge.delay("o-1").get(timeout=60))
        app.control.shutdown()
