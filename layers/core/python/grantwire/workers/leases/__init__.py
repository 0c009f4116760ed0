"""Leases: work that one worker has claimed for a while, and how a failure is put off.

A claim has a name that no other claim has, `<worker>/<uuid>`. Every later change of what was claimed names the claim
and the state, and counts the rows: fewer than expected means that the lease ran out and somebody else has the work.
Then the worker stops and touches nothing else (LeaseLostError). Outbox and notifications keep their SQL in their own
stores; what they share is here: the claim, the fence, the verdict on a failure, and the settings of all of it.

Time is the database's: `now` is None in production and a fixed time in tests. Randomness is passed in.
"""

from grantwire.workers.leases.claims import Claim, fence, worker_name
from grantwire.workers.leases.settings import LeaseSettings
from grantwire.workers.leases.verdicts import Verdict, judge

__all__ = ["Claim", "LeaseSettings", "Verdict", "fence", "judge", "worker_name"]
