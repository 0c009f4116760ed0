"""Randomised runs against a stream that loses messages, on bare workers (W1).

`make check ARGS=losses` makes 200 of them; `--runs`, `--seed` and `--first` choose others.

In each run changes go on while a relay, a bridge and a recorder work, and accidents happen to NATS: its files are cut
back, the stream is purged, or deleted and created again, messages are deleted or leave by age, the consumer is deleted,
the server is killed, the bridge stops. Then NATS is repaired, and within 90 seconds

- every change has arrived in the inbox, or is an open dead letter,
- each event has one notification, and the read model has the last version,
- nothing was published again that the stream had not lost,
- the stream has every event again, unless single messages were deleted or left by age.

A seed repeats the plans, not the timing. A run takes about six seconds. The program ends with 1 if a run failed.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import signal
import sys
import threading
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import nats.errors
import psycopg
from nats.js.errors import NotFoundError
from psycopg.rows import dict_row

from grantwire.errors import GrantwireError
from grantwire.observability import logger
from grantwire.wiring.workers.bridge_events import BridgeRuntime
from grantwire.wiring.workers.record_advisories import RecorderRuntime
from grantwire.wiring.workers.relay_outbox import RelayRuntime
from grantwire.workers.budget import Budget
from tests.support import run as run_files
from tests.support.client import Client
from tests.support.lossy_stream import LossyStream, ServerFiles
from tests.support.nats_users import NatsWithUsers, configure, configured
from tests.support.servers import STATE, Databases, clusters
from tests.support.workers.relay_support import worker_environ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from grantwire.wiring.workers.runtime import WorkerRuntime

_QUICK = {
    "DATABASE_STATEMENT_TIMEOUT": "1s",
    "ENTITLEMENT_OUTBOX_CONFIRM_INTERVAL": "200ms",
    "ENTITLEMENT_OUTBOX_CONFIRM_GRACE": "1100ms",
    "ENTITLEMENT_OUTBOX_CONFIRM_BACKOFF": "1s",
    "ENTITLEMENT_OUTBOX_BACKOFF_BASE": "20ms",
    "ENTITLEMENT_OUTBOX_BACKOFF_MAX": "200ms",
    "ENTITLEMENT_OUTBOX_LEASE": "2s",
    "ENTITLEMENT_OUTBOX_MAX_ATTEMPTS": "1000",
    "NOTIFICATION_NATS_ACK_WAIT": "500ms",
    "NOTIFICATION_NATS_MAX_DELIVER": "20",
}
_ACTION_SECONDS = 2.0
_LIMIT_SECONDS = 90.0
_USERS = 6
# Accidents after which nothing may be published again.
_HARMLESS = ("kill", "delete_consumer", "stop_bridge")
_LOSSES = ("cut", "purge", "recreate", "delete_stream", "delete_message", "age_out", "acknowledge")
_LOG_PUBLISHED = """
CREATE TABLE published_log (event_id uuid, stream_sequence bigint, claimed_at timestamptz);
CREATE FUNCTION log_published() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
  INSERT INTO published_log VALUES (NEW.event_id, NEW.stream_sequence, OLD.locked_at); RETURN NULL; END $$;
CREATE TRIGGER log_published AFTER UPDATE ON outbox_events
   FOR EACH ROW WHEN (NEW.status = 'PUBLISHED' AND OLD.status <> 'PUBLISHED') EXECUTE FUNCTION log_published();
"""


class Snapshot(NamedTuple):
    """The event at each sequence of the stream at one time."""

    taken_at: datetime
    events: dict[int, str]


class WorkerThread:
    """A worker that runs in a thread until it is stopped."""

    def __init__(self, build: Callable[[Mapping[str, str]], WorkerRuntime], environ: Mapping[str, str]) -> None:
        self._build, self._environ = build, environ
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Start the worker."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the worker and wait for its end."""
        self._stopped.set()
        self._thread.join(60)

    def _run(self) -> None:
        runtime = self._build(self._environ)
        budget = Budget(1.0, clock=lambda: 2.0 if self._stopped.is_set() else 0.0)
        try:
            while not self._stopped.is_set():
                with contextlib.suppress(Exception):  # an outage: the next invocation goes on
                    runtime.run(budget)
        finally:
            runtime.close()


class Run:
    """One run: its plan, its servers, and what was seen."""

    def __init__(self, number: int, seed: str, databases: Databases, server: NatsWithUsers) -> None:
        self._random = random.Random(f"{seed}:{number}")  # noqa: S311 - a plan that can be repeated
        self._server = server
        self._files = ServerFiles(server)
        self._url = databases.migrated()
        self._databases = databases
        self.environ = configured(worker_environ(self._url, server.url) | _QUICK)
        self._rows = psycopg.connect(databases.url_for_owner(self._url), autocommit=True, row_factory=dict_row)
        self._rows.execute(_LOG_PUBLISHED)
        self.flow = LossyStream(self.environ, self._rows)
        self._snapshots: list[Snapshot] = []
        self._bridge: WorkerThread | None = None
        self.plan = self._make_plan()
        self.changes = 0
        self.errors: list[str] = []
        self.skipped: list[str] = []

    def __enter__(self) -> Self:
        """Do nothing: the constructor has prepared everything."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Delete the stream and the database."""
        with contextlib.suppress(Exception):
            self.flow.delete_stream()
        self._rows.close()
        self._databases.drop(self._url)

    def _make_plan(self) -> list[tuple[float, str]]:
        pool = _HARMLESS if self._random.random() < 0.25 else _HARMLESS + _LOSSES * 2
        names = [self._random.choice(pool) for _ in range(self._random.randint(1, 4))]
        return sorted((self._random.uniform(0.3, _ACTION_SECONDS), name) for name in names)

    @property
    def may_republish(self) -> bool:
        """Whether an accident of the plan loses messages, or acknowledges them in place of the bridge."""
        return any(name in _LOSSES for _, name in self.plan)

    def execute(self) -> float:
        """Execute the plan, repair NATS, and check the result; return the seconds until everything had arrived."""
        with WorkerThread(RelayRuntime.build, self.environ), WorkerThread(RecorderRuntime.build, self.environ):
            try:
                self._start_bridge()
                self._act()
                with contextlib.suppress(nats.errors.Error, GrantwireError, TimeoutError):
                    self._take_snapshot()  # what left by age meanwhile
                self._repair()
                began = time.monotonic()
                self._wait_until_settled(began + _LIMIT_SECONDS)
                seconds = time.monotonic() - began
                self._check_stability()
            finally:
                self._stop_bridge()
        self._check()
        return seconds

    def _act(self) -> None:
        """Make changes until the plan is over, and cause its accidents meanwhile."""
        over = threading.Event()
        changing = threading.Thread(target=self._change, args=(over,), daemon=True)
        changing.start()
        began = time.monotonic()
        copy_at = self._random.uniform(0.1, 0.6)
        time.sleep(copy_at)
        if any(name == "cut" for _, name in self.plan):
            self._files.copy_running()
        for at, name in self.plan:
            time.sleep(max(0.0, began + at - time.monotonic()))
            try:
                getattr(self, f"_{name}")()
            except Exception as error:  # noqa: BLE001 - the stream can be away because of an earlier accident
                self.skipped.append(f"{name}: {error!r:.100}")
            with contextlib.suppress(nats.errors.Error, GrantwireError, TimeoutError):
                self._take_snapshot()
        time.sleep(self._random.uniform(0.1, 0.5))
        over.set()
        changing.join(30)

    def _change(self, over: threading.Event) -> None:
        chooser = random.Random(self._random.random())  # noqa: S311
        is_granted = dict.fromkeys(range(_USERS), False)
        with Client(self._url) as client:
            while not over.is_set():
                user = chooser.randrange(_USERS)
                change = client.revoke if is_granted[user] else client.grant
                if change(str(uuid.uuid4()), user_id=f"u{user}").status == 200:
                    is_granted[user] = not is_granted[user]
                    self.changes += 1
                time.sleep(chooser.uniform(0, 0.02))

    def _kill(self) -> None:
        self._server.kill()
        time.sleep(self._random.uniform(0, 0.3))
        self._server.start()

    def _cut(self) -> None:
        self._files.cut()

    def _purge(self) -> None:
        self.flow.purge()

    def _recreate(self) -> None:
        self.flow.recreate_stream()

    def _delete_stream(self) -> None:
        self.flow.delete_stream()

    def _delete_consumer(self) -> None:
        self.flow.delete_consumer()

    def _delete_message(self) -> None:
        sequences = list(self.flow.sequences().values())
        for sequence in self._random.sample(sequences, min(3, len(sequences))):
            with contextlib.suppress(Exception):
                self.flow.delete_message(sequence)

    def _age_out(self) -> None:
        self.flow.shorten_age()
        time.sleep(0.3)

    def _acknowledge(self) -> None:
        self.flow.acknowledge_all()

    def _stop_bridge(self) -> None:
        if self._bridge is not None:
            self._bridge.__exit__()
            self._bridge = None

    def _start_bridge(self) -> None:
        if self._bridge is None:
            self._bridge = WorkerThread(BridgeRuntime.build, self.environ).__enter__()

    def _repair(self) -> None:
        """Do what a person does: start NATS, configure the streams, start the bridge."""
        if not self._server.is_alive():
            self._server.start()
        configure(self.environ)
        self._start_bridge()

    def _take_snapshot(self) -> None:
        taken_at = datetime.now(UTC)
        try:
            events = {message.sequence: message.headers["event_id"] for message in self.flow.published()}
        except NotFoundError:
            events = {}  # the stream is deleted
        self._snapshots.append(Snapshot(taken_at, events))

    def _unsettled(self) -> int:
        (row,) = self._rows.execute("""
            SELECT count(*) AS n FROM outbox_events o
             WHERE o.status <> 'PUBLISHED' OR (
                   NOT EXISTS (SELECT FROM processed_events p WHERE p.event_id = o.event_id)
                   AND NOT EXISTS (SELECT FROM notification_nats_dlq d
                                    WHERE d.event_id = o.event_id AND d.status = 'OPEN'))""").fetchall()
        return int(row["n"])

    def _wait_until_settled(self, deadline: float) -> None:
        while unsettled := self._unsettled():
            if time.monotonic() > deadline:
                self.errors.append(f"{unsettled} events have not arrived after {_LIMIT_SECONDS:g} s")
                return
            time.sleep(0.05)

    def _check_stability(self) -> None:
        """Wait for the next checks, which must end with an empty list and nothing to publish."""
        deadline, row = time.monotonic() + _LIMIT_SECONDS, {}
        while time.monotonic() < deadline:
            (row,) = self._rows.execute("""
                SELECT (SELECT count(*) FROM outbox_unconfirmed) AS listed,
                       (SELECT count(*) FROM stream_losses WHERE completed_at IS NULL) AS open,
                       (SELECT mark >= (SELECT max(published_at) FROM outbox_events) FROM outbox_confirmation) AS passed
                """).fetchall()
            if not row["listed"] and not row["open"] and row["passed"] and not self._unsettled():
                return
            time.sleep(0.05)
        self.errors.append(f"the confirmation did not come to rest: {row}")

    def _check(self) -> None:
        (row,) = self._rows.execute("""
            SELECT (SELECT count(*) FROM outbox_events) AS events,
                   (SELECT count(*) FROM notifications) AS notifications,
                   (SELECT count(DISTINCT event_id) FROM notifications) AS notified,
                   (SELECT count(*) FROM notification_nats_dlq WHERE status = 'OPEN') AS dead,
                   (SELECT count(*)
                      FROM entitlements e LEFT JOIN user_entitlements r USING (user_id, stock_keeping_unit)
                     WHERE r.version IS DISTINCT FROM e.version OR r.status IS DISTINCT FROM e.status) AS different
            """).fetchall()
        if row["notifications"] != row["notified"] or row["notified"] + row["dead"] < row["events"]:
            self.errors.append(f"effects: {row}")
        if row["different"] and not row["dead"]:
            self.errors.append(f"{row['different']} rows of the read model differ")
        self.errors += self._find_unjustified()
        self._take_snapshot()
        present = set(self._snapshots[-1].events.values())
        if not any(name in {"delete_message", "age_out"} for _, name in self.plan):
            ids = {str(row["event_id"]) for row in self._rows.execute("SELECT event_id FROM outbox_events")}
            if missing := ids - present:
                self.errors.append(f"{len(missing)} events are missing in the stream for other readers")

    def _find_unjustified(self) -> Iterator[str]:
        """Yield republications of messages that the stream had after every accident since they were claimed."""
        republished = self._rows.execute("""
            SELECT r.event_id::text, r.stream_sequence, r.cause,
                   (SELECT min(l.claimed_at) FROM published_log l
                     WHERE l.event_id = r.event_id AND l.stream_sequence = r.stream_sequence) AS claimed_at
              FROM outbox_republications r""").fetchall()
        if republished and not self.may_republish:
            yield f"{len(republished)} events were published again that were only late"
        for row in republished:
            if row["cause"] == "NOT_DELIVERED":
                continue
            # It was published after this time. On a busy machine it can be marked as published seconds later.
            after = [snapshot for snapshot in self._snapshots if snapshot.taken_at >= row["claimed_at"]]
            if all(snapshot.events.get(row["stream_sequence"]) == row["event_id"] for snapshot in after):
                yield f"event {row['event_id']} at {row['stream_sequence']} was published again, but not lost"

    def counts(self) -> dict[str, int]:
        """Return what happened, for the report."""
        (row,) = self._rows.execute("""
            SELECT (SELECT count(*) FROM outbox_events) AS events,
                   (SELECT count(*) FROM outbox_republications) AS republished,
                   (SELECT count(*) FROM outbox_republications WHERE cause = 'NOT_DELIVERED') AS not_delivered,
                   (SELECT count(*) FROM stream_losses WHERE cause <> 'DELETED') AS ranges,
                   (SELECT count(*) FROM notification_nats_dlq) AS dead_letters""").fetchall()
        return dict(row)


def main() -> int:
    """Execute the runs that the arguments ask for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    parser.add_argument("--first", type=int, default=1, help="number of the first run, to repeat one")
    parser.add_argument("--minutes", type=float, default=20.0, help="begin no run after this time")
    arguments = parser.parse_args()
    logger.setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers are stopped
    run_files.begin()
    failed, done, slowest = [], 0, 0.0
    totals: dict[str, int] = {}
    began = time.monotonic()
    try:
        cluster = next(iter(clusters().values()))()
        cluster.start()
        databases = Databases(cluster)
        server = NatsWithUsers(STATE / "lossy-nats")
        server.start()
        for number in range(arguments.first, arguments.first + arguments.runs):
            if time.monotonic() - began > arguments.minutes * 60:
                break
            with Run(number, arguments.seed, databases, server) as run:
                seconds = run.execute()
                counts = run.counts()
            done, slowest = done + 1, max(slowest, seconds)
            totals = {name: totals.get(name, 0) + count for name, count in counts.items()}
            plan = ", ".join(f"{name} {at:.1f}" for at, name in run.plan)
            verdict = "; ".join(run.errors) or "ok"
            _print(f"{number:4} {verdict} | {seconds:.1f} s | {counts} | {plan} | {run.skipped or ''}")
            if run.errors:
                failed.append(number)
        server.destroy()
        databases.close()
        cluster.destroy()
    finally:
        run_files.end()
    minutes = (time.monotonic() - began) / 60
    _print(
        f"seed {arguments.seed}: {done} runs in {minutes:.1f} min, {len(failed)} failed {failed or ''};"
        f" arrived at most {slowest:.1f} s after the repair; {totals}"
    )
    return 1 if failed else 0


def _print(line: str) -> None:
    """Write a line of the report to standard error; the workers write their metrics to standard output."""
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
