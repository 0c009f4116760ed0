"""Rights: who owns what.

`Entitlements.change` grants or revokes a right, at most once for each idempotency key, in one transaction and one round
trip: the change, its event, its audit row and the stored answer commit together or not at all (E6). It returns the
answer to send, refusals by state included; it raises KeyConflictError, RequestInProgressError or RetryableError, after
which nothing was changed.

`Entitlements.of_user` reads a user's rights from the system of record and raises RetryableError only.
"""

from grantwire.entitlements.commands import Change, Operation, Page
from grantwire.entitlements.store import Entitlements

__all__ = ["Change", "Entitlements", "Operation", "Page"]
