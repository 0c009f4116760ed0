"""Execute up to 100 changes of entitlements, each at most once for its idempotency key."""

from grantwire.api.http import HttpHandler
from grantwire.api.routes.batches import count_items, handle
from grantwire.wiring.routes.change_batch import BatchRuntime

handler = HttpHandler({"POST /v1/entitlements/batches": handle}, BatchRuntime.build, weigh=count_items)
