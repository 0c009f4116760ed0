"""The SQL of `operator_commands` under a lease: claim, renew, complete, fail and release, and the steps of a batch.

The changes of a batch, its row in `operator_actions` and the position of the next batch commit together. So a command
that was interrupted continues where it stopped, and does nothing twice. Every statement after the claim changes only a
row that has the token of the claim and is RUNNING (ADR 0010).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.database import Jsonb
from grantwire.operations.commands import OperatorCommand
from grantwire.operator_actions import Operator
from grantwire.workers.leases import ensure_claim_held

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from grantwire.database import Connection
    from grantwire.workers.leases import Completion, Failure

# The position of a command that has nothing left to do.
FINISHED = "finished"


class ClaimedCommand(NamedTuple):
    """A claimed command: what it is, and how far it has come. `position` is where its next batch starts."""

    command_id: UUID
    command: OperatorCommand
    created_at: datetime
    attempt_count: int
    position: str | None
    selected: int
    result: Mapping[str, Any] | None


# The oldest command that is due. A command whose lease has expired was interrupted, which counts as a failed attempt.
# One that never ran is due whatever the clock says, and `updated_at` never decreases, if the clock was set back (W6).
_CLAIM = """
UPDATE operator_commands c
   SET status = 'RUNNING', locked_by = %(token)s, locked_at = coalesce(%(now)s::timestamptz, now()),
       lease_until = coalesce(%(now)s::timestamptz, now()) + %(lease)s,
       started_at = coalesce(c.started_at, %(now)s::timestamptz, now()),
       updated_at = greatest(c.updated_at, coalesce(%(now)s::timestamptz, now())),
       attempt_count = c.attempt_count + (c.locked_by IS NOT NULL)::integer,
       last_error = CASE WHEN c.locked_by IS NULL THEN c.last_error
                         ELSE 'interrupted: the lease of ' || c.locked_by || ' expired' END
 WHERE c.command_id = ANY (ARRAY(
         SELECT d.command_id FROM operator_commands d
          WHERE d.finished_at IS NULL
            AND coalesce(d.lease_until, CASE WHEN d.started_at IS NULL THEN '-infinity' ELSE d.next_run_at END)
                <= coalesce(%(now)s::timestamptz, now())
          ORDER BY d.next_run_at, d.command_id
          LIMIT %(limit)s
            FOR UPDATE SKIP LOCKED))
RETURNING c.command_id, c.kind, c.actor, c.reason, c.source, c.arguments,
          c.created_at, c.attempt_count, c.position, c.selected, c.result
"""


def claim(
    tx: Connection, token: str, *, limit: int, lease: timedelta, now: datetime | None = None
) -> list[ClaimedCommand]:
    """Claim up to `limit` commands that are due, oldest first."""
    rows = tx.execute(_CLAIM, {"token": token, "limit": limit, "lease": lease, "now": now})
    return [
        ClaimedCommand(command_id, OperatorCommand(kind, Operator(actor, reason, source), arguments), *progress)
        for command_id, kind, actor, reason, source, arguments, *progress in rows
    ]


def get_id(command: ClaimedCommand) -> UUID:
    """Return the id of a claimed command."""
    return command.command_id


_RENEW = """
UPDATE operator_commands
   SET lease_until = coalesce(%(now)s::timestamptz, now()) + %(lease)s
 WHERE command_id = ANY (%(ids)s::uuid[]) AND locked_by = %(token)s AND status = 'RUNNING'
"""


def renew(tx: Connection, token: str, ids: Sequence[UUID], *, lease: timedelta, now: datetime | None = None) -> int:
    """Extend the lease of commands; return how many still belonged to the claim."""
    return tx.execute(_RENEW, {"token": token, "ids": list(ids), "lease": lease, "now": now}).rowcount


_BEGIN_BATCH = """
UPDATE operator_commands SET batches = batches + 1
 WHERE command_id = %(id)s AND locked_by = %(token)s AND status = 'RUNNING'
RETURNING batches - 1
"""


def begin_batch(tx: Connection, token: str, command_id: UUID) -> int | None:
    """Return the number of the next batch; None if the command no longer belongs to the claim."""
    row = tx.execute(_BEGIN_BATCH, {"token": token, "id": command_id}).fetchone()
    return None if row is None else int(row[0])


class BatchOutcome(NamedTuple):
    """What one batch adds to a command. The next batch starts at `position`, after `delay`."""

    position: str
    selected: int = 0
    done: int = 0
    skipped: Mapping[str, int] = {}
    result: Mapping[str, Any] | None = None
    delay: timedelta | None = None


# Progress was made, so earlier failed attempts do not count any more.
_END_BATCH = """
UPDATE operator_commands c
   SET position = %(position)s, selected = c.selected + %(selected)s, done = c.done + %(done)s,
       skipped = c.skipped || coalesce((
           SELECT jsonb_object_agg(s.reason, s.count::bigint + coalesce((c.skipped->>s.reason)::bigint, 0))
             FROM jsonb_each_text(%(skipped)s::jsonb) AS s (reason, count)), '{}'),
       result = coalesce(%(result)s::jsonb, c.result), attempt_count = 0, last_error = NULL,
       next_run_at = coalesce(%(now)s::timestamptz, now()) + coalesce(%(delay)s::interval, interval '0'),
       updated_at = greatest(c.updated_at, coalesce(%(now)s::timestamptz, now()))
 WHERE c.command_id = %(id)s AND c.locked_by = %(token)s AND c.status = 'RUNNING'
"""


def end_batch(
    tx: Connection, token: str, command_id: UUID, outcome: BatchOutcome, *, now: datetime | None = None
) -> int:
    """Add the outcome of a batch, in its transaction; return 1, or 0 if the command no longer belongs to the claim."""
    parameters = {
        **outcome._asdict(),
        "skipped": Jsonb(dict(outcome.skipped)),
        "result": None if outcome.result is None else Jsonb(dict(outcome.result)),
    }
    return tx.execute(_END_BATCH, {**parameters, "token": token, "id": command_id, "now": now}).rowcount


class Fence:
    """The claim of a worker on a command. Each method raises LeaseLostError, which rolls back the batch, without it."""

    def __init__(self, token: str, command_id: UUID) -> None:
        self._token = token
        self._command_id = command_id

    def begin(self, tx: Connection) -> int:
        """Return the number of the next batch."""
        number = begin_batch(tx, self._token, self._command_id)
        ensure_claim_held(int(number is not None), 1, "begin_batch")
        return number or 0

    def end(self, tx: Connection, outcome: BatchOutcome) -> BatchOutcome:
        """Keep the outcome of the batch, and return it."""
        ensure_claim_held(end_batch(tx, self._token, self._command_id, outcome), 1, "end_batch")
        return outcome


# A command without a result of its own gets its counts. They are the same after an interruption.
_COMPLETE = """
UPDATE operator_commands c
   SET status = 'DONE', finished_at = coalesce(%(now)s::timestamptz, now()),
       updated_at = greatest(c.updated_at, coalesce(%(now)s::timestamptz, now())), last_error = NULL, attempt_count = 0,
       result = coalesce(c.result, '{}')
                || CASE WHEN c.kind LIKE 'dead_letters.%%'
                        THEN jsonb_build_object('selected', c.selected, 'done', c.done, 'skipped', c.skipped)
                        ELSE '{}' END,
       locked_by = NULL, locked_at = NULL, lease_until = NULL
 WHERE c.command_id = ANY (%(ids)s::uuid[]) AND c.locked_by = %(token)s AND c.status = 'RUNNING'
"""


def complete(tx: Connection, token: str, completions: Sequence[Completion], *, now: datetime | None = None) -> int:
    """Mark commands DONE; return how many still belonged to the claim."""
    ids = [completion.id for completion in completions]
    return tx.execute(_COMPLETE, {"token": token, "ids": ids, "now": now}).rowcount


_FAIL = """
UPDATE operator_commands c
   SET status = CASE WHEN f.retry_after IS NULL THEN 'FAILED' ELSE c.status END,
       finished_at = CASE WHEN f.retry_after IS NULL THEN coalesce(%(now)s::timestamptz, now()) END,
       next_run_at = coalesce(%(now)s::timestamptz, now()) + coalesce(f.retry_after, interval '0'),
       attempt_count = f.attempt_count, last_error = f.reason,
       updated_at = greatest(c.updated_at, coalesce(%(now)s::timestamptz, now())),
       locked_by = NULL, locked_at = NULL, lease_until = NULL
  FROM unnest(%(ids)s::uuid[], %(attempts)s::integer[], %(retries)s::interval[], %(reasons)s::text[])
       AS f (command_id, attempt_count, retry_after, reason)
 WHERE c.command_id = f.command_id AND c.locked_by = %(token)s AND c.status = 'RUNNING'
"""


def fail(tx: Connection, token: str, failures: Sequence[Failure], *, now: datetime | None = None) -> int:
    """Retry commands later or mark them FAILED, each as decided; return how many still belonged to the claim."""
    return tx.execute(
        _FAIL,
        {
            "token": token,
            "ids": [failure.id for failure in failures],
            "attempts": [failure.decision.attempt_count for failure in failures],
            "retries": [failure.decision.retry_after for failure in failures],
            "reasons": [failure.reason for failure in failures],
            "now": now,
        },
    ).rowcount


_RELEASE = """
UPDATE operator_commands SET locked_by = NULL, locked_at = NULL, lease_until = NULL
 WHERE command_id = ANY (%(ids)s::uuid[]) AND locked_by = %(token)s AND status = 'RUNNING'
"""


def release(tx: Connection, token: str, ids: Sequence[UUID]) -> int:
    """Let another worker continue the commands; return how many still belonged to the claim."""
    return tx.execute(_RELEASE, {"token": token, "ids": list(ids)}).rowcount
