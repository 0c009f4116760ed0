"""Delete what is past its time, keep the months of the audit, and tell about what must never be."""

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.runtime.sweep import SweepRuntime

handler = WorkerHandler("sweep_retention", SweepRuntime.build)
