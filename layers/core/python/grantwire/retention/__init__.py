"""Retention: what is past its time goes, in bounded batches; what must never be is told about.

`Sweep.run` works through the policies of `policies` (R1-R3, Q4) batch by batch, each a transaction of its own, within
its budget; the next run goes on, and two at once share the work (R4). It keeps the months of the audit three ahead and
drops old ones only if a setting says so (A1). It raises the first RetryableError or InternalError of a step, after all
the others had their turn. What operators did (`operator_actions`) and open dead letters are never deleted.
"""

from grantwire.retention.policies import POLICIES, Policy
from grantwire.retention.settings import RetentionSettings
from grantwire.retention.sweep import Sweep

__all__ = ["POLICIES", "Policy", "RetentionSettings", "Sweep"]
