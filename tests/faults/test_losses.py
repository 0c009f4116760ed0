"""W1: whatever the stream loses while changes go on, every change arrives after the repair of NATS (random runs).

The runs on bare workers are many and fast: `make check ARGS=losses`. These few are on a deployed stack, with its
schedules and its own patience.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row

from infra.local.faults import streams
from infra.local.system.processes import wait_for
from tests.e2e.http import Http
from tests.support.lossy_stream import ServerFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from infra.local.stack.embedded import EmbeddedStack
    from tests.e2e.command import Grantwire
    from tests.support.receiver import Receiver

pytestmark = pytest.mark.timeout(1800)

TIMEOUT_SECONDS = 300.0
ACTION_SECONDS = 8.0
USERS = 5
LOSSES = ("cut", "lose", "delete_stream")
ACCIDENTS = (*LOSSES, "kill", "restart", "pause")

EFFECTS = """
SELECT count(*) AS events,
       count(*) FILTER (WHERE d.event_id IS NOT NULL) AS dead,
       count(*) FILTER (WHERE n.sent = 1) AS sent, count(*) FILTER (WHERE n.rows > 1) AS doubled
  FROM outbox_events o
  LEFT JOIN (SELECT event_id, count(*) AS rows, count(*) FILTER (WHERE status = 'SENT') AS sent
               FROM notifications GROUP BY event_id) AS n USING (event_id)
  LEFT JOIN notification_nats_dlq d ON d.event_id = o.event_id AND d.status = 'OPEN'
"""
DIFFERENT = """
SELECT count(*) AS n FROM entitlements e LEFT JOIN user_entitlements r USING (user_id, stock_keeping_unit)
 WHERE r.version IS DISTINCT FROM e.version OR r.status IS DISTINCT FROM e.status
"""
SENT = "SELECT notification_id::text AS id FROM notifications WHERE status = 'SENT'"


@pytest.fixture(scope="module")
def rows(stack: EmbeddedStack) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """A connection of the owner."""
    with psycopg.connect(stack.database_url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


@pytest.mark.parametrize("seed", range(5))
def test_every_change_arrives_after_random_losses(
    stack: EmbeddedStack,
    receiver: Receiver,
    grantwire: Grantwire,
    rows: psycopg.Connection[dict[str, Any]],
    forget_losses: Callable[[], None],
    seed: int,
) -> None:
    """One notification for each change, SENT or an open dead letter, and nothing but an OK status at the end."""
    chooser = random.Random(seed)  # noqa: S311 - a plan that can be repeated
    plan = [chooser.choice(LOSSES), *chooser.choices(ACCIDENTS, k=2)]
    chooser.shuffle(plan)
    files = ServerFiles(stack.nats)
    with changes(stack, chooser) as made:
        time.sleep(1.0)
        files.copy_running()
        for accident in plan:
            time.sleep(chooser.uniform(0, ACTION_SECONDS / len(plan)))
            cause(stack, files, accident)
    repair(stack)
    repaired_at = time.monotonic()

    def settled() -> bool:
        (effects,) = rows.execute(EFFECTS).fetchall()
        return bool(effects["sent"] + effects["dead"] >= effects["events"])

    assert wait_for(settled, TIMEOUT_SECONDS, every=0.5), (seed, plan, rows.execute(EFFECTS).fetchall())
    seconds = time.monotonic() - repaired_at
    (effects,) = rows.execute(EFFECTS).fetchall()
    assert (effects["doubled"], rows.execute(DIFFERENT).fetchall()) == (0, [{"n": 0}]), (seed, plan)
    assert {row["id"] for row in rows.execute(SENT)} <= receiver.accepted.keys()
    forget_losses()
    assert wait_for(lambda: grantwire("status")[0] == 0, TIMEOUT_SECONDS, every=1), grantwire("status")
    sys.stderr.write(f"seed {seed}, {', '.join(plan)}: {made[0]} changes, all arrived after {seconds:.0f} s\n")


@contextlib.contextmanager
def changes(stack: EmbeddedStack, chooser: random.Random) -> Iterator[list[int]]:
    """Grant and revoke over HTTP until the block ends; yields the number of changes."""
    http, over, made = Http(stack.api_url, stack.token), threading.Event(), [0]
    users = [f"u{uuid.uuid4().hex[:8]}" for _ in range(USERS)]
    pauses = random.Random(chooser.random())  # noqa: S311

    def change() -> None:
        is_granted = dict.fromkeys(users, False)
        while not over.is_set():
            user = pauses.choice(users)
            request = http.revoke if is_granted[user] else http.grant
            if request(uuid.uuid4().hex, user_id=user).status == 200:
                is_granted[user] = not is_granted[user]
                made[0] += 1
            time.sleep(pauses.uniform(0, 0.1))

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        over.set()
        thread.join(120)
    assert made[0] > 0


def cause(stack: EmbeddedStack, files: ServerFiles, accident: str) -> None:
    """Let one accident happen to NATS; an earlier one may have taken the stream or the consumer away."""
    with contextlib.suppress(Exception):
        match accident:
            case "cut":
                files.cut()
            case "lose":
                streams.lose_messages(stack)
            case "delete_stream":
                streams.delete_stream(stack)
            case "kill":
                stack.nats.kill()
                stack.nats.start()
            case "restart":
                stack.nats.restart()
            case "pause":
                streams.pause_consumer(stack)


def repair(stack: EmbeddedStack) -> None:
    """Do what a person does: start NATS, and create what is missing."""
    if not stack.nats.is_alive():
        stack.nats.start()
    streams.configure(stack)
    with contextlib.suppress(Exception):
        streams.resume_consumer(stack)
