"""Delete rows past their retention, maintain the audit partitions, and run consistency checks."""

from grantwire.wiring.workers.handler import WorkerHandler
from grantwire.wiring.workers.sweep_retention import SweepRuntime

handler = WorkerHandler("sweep_retention", SweepRuntime.build)
