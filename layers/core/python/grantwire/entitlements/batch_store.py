"""The SQL statement that executes a batch of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grantwire.entitlements.batches import BatchItem, BatchResult
from grantwire.entitlements.store import change_fields, encode, to_stored_response
from grantwire.errors import NotAppliedError, RejectedError, RetryableError
from grantwire.idempotency import request_hash

if TYPE_CHECKING:
    from datetime import timedelta

    from grantwire.database import Database
    from grantwire.entitlements.batches import BatchCommand, ItemResult
    from grantwire.entitlements.settings import TimeSettings
    from grantwire.idempotency import IdempotencySettings

# The SQL function (infra/sql/functions/change_entitlements.sql) calls that of a single change for each item.
CHANGE_BATCH = """
SELECT outcomes, status_codes, bodies, refused
  FROM change_entitlements(
         %(caller)s, %(ttl)s, %(lock_wait_ms)s::integer, %(wait_ms)s::integer, %(atomic)s, %(grace)s, %(notice)s,
         %(changes)s::jsonb)
"""


class EntitlementBatches:
    """Executes batches of changes in the system of record.

    `statement_timeout` is that of the database. The waits of a batch end early enough to leave time for its work.
    """

    def __init__(
        self, database: Database, settings: IdempotencySettings, times: TimeSettings, statement_timeout: timedelta
    ) -> None:
        self._database = database
        self._parameters = {
            "ttl": f"{settings.ttl.total_seconds()} seconds",
            "lock_wait_ms": _milliseconds(settings.lock_wait),
            # All locks of keys end after the first part, all locks of rows before the last part.
            "wait_ms": _milliseconds((settings.lock_wait + statement_timeout) / 2),
            "grace": times.grace_interval,
            "notice": times.notice_interval,
        }

    def execute(
        self,
        batch: BatchCommand,
        caller: str,
        trace_id: str,
        source_address: str | None = None,
        correlation_id: str | None = None,
    ) -> BatchResult:
        """Execute the items of a batch in order, each as if `caller` had sent it alone, in one transaction.

        Each item has the trace id, the source address and the correlation id of the batch in its audit row.

        With `batch.atomic`, the first refused item, replayed refusals included, ends the batch; nothing is changed or
        stored then. Raises RetryableError if the database is unavailable or a row stays locked; nothing was changed.
        """
        invalid = {n: item for n, item in enumerate(batch.items) if not isinstance(item, BatchItem)}
        if batch.atomic and invalid:
            first = min(invalid)
            return _not_applied(len(batch.items), first, invalid[first])
        valid = [item for item in batch.items if isinstance(item, BatchItem)]
        if not valid:
            return BatchResult(list(invalid.values()))
        changes = [
            _with_key(item, change_fields(item.command, caller, trace_id, source_address, correlation_id))
            for item in valid
        ]
        outcomes, status_codes, bodies, refused = self._database.fetch_row(
            CHANGE_BATCH, {**self._parameters, "caller": caller, "atomic": batch.atomic, "changes": encode(changes)}
        )
        results = list(map(_to_result, outcomes, status_codes, bodies))
        if refused is not None:
            return _not_applied(len(batch.items), refused - 1, results[-1])
        executed = iter(results)
        return BatchResult([invalid.get(n) or next(executed) for n in range(len(batch.items))])


def _with_key(item: BatchItem, change: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an item's change, with its route, key and request hash."""
    return {
        **change,
        "route": item.command.operation.route,
        "key": item.key,
        "request_hash": request_hash(item.command.fields()),
    }


def _to_result(outcome: str, status_code: int | None, body: str | None) -> ItemResult:
    try:
        return to_stored_response(outcome, status_code, body)
    except (RejectedError, RetryableError) as error:
        return error


def _not_applied(count: int, refused: int, result: ItemResult) -> BatchResult:
    others = NotAppliedError(f"items[{refused}] was refused, nothing was applied")
    return BatchResult([result if n == refused else others for n in range(count)], others)


def _milliseconds(duration: timedelta) -> str:
    return str(int(duration.total_seconds() * 1000))
