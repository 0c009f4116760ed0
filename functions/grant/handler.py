"""Grant an entitlement, at most once for each idempotency key."""

from grantwire.entitlements import Operation
from grantwire.entrypoints.changes import change_handler

handler = change_handler(Operation.GRANT)
