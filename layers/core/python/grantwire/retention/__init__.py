"""Retention: deleting rows that are past their retention, in bounded batches.

The sweep applies the policies in `policies` (R1-R3, Q4) batch by batch. Each batch is a transaction of its own. When
the budget ends, the next run continues; sweeps that overlap share the work (R4). The sweep also creates the partitions
of the audit three months ahead, and drops old ones only if a setting allows it (A1). It checks invariants and logs
violations.

If a task fails, the others still run; then the sweep raises the first RetryableError or InternalError. Operator actions
(`operator_actions`) and open dead letters are never deleted.
"""

from grantwire.retention.policies import POLICIES, Policy
from grantwire.retention.settings import RetentionSettings
from grantwire.retention.sweep import Sweep

__all__ = ["POLICIES", "Policy", "RetentionSettings", "Sweep"]
