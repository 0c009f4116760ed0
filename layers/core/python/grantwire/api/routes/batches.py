"""The handler of the route that executes a batch of changes, and its response."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from grantwire.api.responses import Response, refuse
from grantwire.entitlements.batches import MAX_BATCH_BYTES, BatchCommand, BatchEnvelope
from grantwire.errors import RejectedError
from grantwire.idempotency import StoredResponse

if TYPE_CHECKING:
    from grantwire.api.request import Request
    from grantwire.entitlements.batches import BatchResult, ItemResult
    from grantwire.wiring.routes.change_batch import BatchRuntime


def handle(request: Request, rt: BatchRuntime) -> Response:
    """Execute a batch in one transaction and one round trip."""
    batch = BatchCommand.parse(request.json_object(max_bytes=MAX_BATCH_BYTES))
    caller = request.authenticated_caller()
    result = rt.batches.execute(batch, caller, request.trace_id, request.source_address, request.correlation_id)
    return render(result)


def count_items(request: Request) -> int:
    """Return the number of items in a batch; 1 for a request that is refused as a whole (G6)."""
    try:
        return len(BatchEnvelope.parse(request.json_object(max_bytes=MAX_BATCH_BYTES)).items)
    except RejectedError:
        return 1


def render(result: BatchResult) -> Response:
    """Return the response to a batch. Stored bodies are part of it byte for byte.

    The three counts add up to the number of items. Items of an atomic batch that was not applied count as refused.
    """
    results = ",".join(map(_render_item, result.results))
    counted = Counter(map(_kind, result.results))
    counts = {f"Items{kind}": counted[kind] for kind in ("Applied", "Replayed", "Refused")}
    if result.not_applied is not None:
        refusal = refuse(result.not_applied)
        return refusal._replace(body=f'{refusal.body[:-1]},"results":[{results}]}}', counts=counts)
    outcome = "PARTIAL" if counted["Refused"] else "APPLIED" if counted["Applied"] else "REPLAYED"
    return Response(200, f'{{"results":[{results}]}}', outcome=outcome, counts=counts)


def _render_item(result: ItemResult) -> str:
    response = Response.from_stored(result) if isinstance(result, StoredResponse) else refuse(result)
    replayed = "true" if isinstance(result, StoredResponse) and result.replayed else "false"
    return f'{{"status_code":{response.status_code},"replayed":{replayed},"response":{response.body}}}'


def _kind(result: ItemResult) -> str:
    if isinstance(result, StoredResponse) and result.replayed:
        return "Replayed"
    return "Applied" if isinstance(result, StoredResponse) and result.outcome == "APPLIED" else "Refused"
