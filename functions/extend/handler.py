"""Move or remove the end of an entitlement, at most once for each idempotency key."""

from grantwire.api.routes.changes import change_handler
from grantwire.entitlements import Operation

handler = change_handler(Operation.EXTEND)
