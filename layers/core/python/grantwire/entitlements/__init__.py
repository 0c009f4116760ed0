"""Entitlements: granting, revoking and listing what users own.

`Entitlements.change` grants or revokes an entitlement, at most once for each idempotency key. It uses one transaction
and one round trip: the change, its event, its audit row and the stored response commit together or not at all (E6). It
returns the response to send, which can be a state conflict. It raises KeyConflictError, RequestInProgressError or
RetryableError; nothing was changed then.

`EntitlementBatches.execute` (in `batch_store`) makes up to 100 changes in one transaction and one round trip, each as
if it was requested alone (K6). It returns the response or the error of each. It raises only RetryableError; nothing was
changed then.

`Entitlements.list_for_user` reads a user's entitlements from the system of record. It raises only RetryableError.

`checks.Checks` decides whether a user may use something, and until when that may be cached; `history.History` lists the
changes of an entitlement. Every read computes the status from the stored times with PostgreSQL's clock.
"""

from grantwire.entitlements.commands import ChangeCommand, Operation
from grantwire.entitlements.read_requests import ListRequest
from grantwire.entitlements.store import Entitlements

__all__ = ["ChangeCommand", "Entitlements", "ListRequest", "Operation"]
