"""The slow proofs of the idempotency library, for `make check`.

The installed wheel, workers of task queues that are killed, and ten times as many checks by threads and forks.
"""

from __future__ import annotations

import os
import subprocess
import sys

# One pytest for each: both start the PostgreSQL of their run, and a run has one.
PROOFS = (
    "tests/installed",
    "layers/idempotency/tests/installed",
    "layers/idempotency/tests/workers",
    "layers/idempotency/tests/integration/test_threads_and_forks.py",
)

if __name__ == "__main__":
    environment = {**os.environ, "GRANTWIRE_THREAD_CHECKS": "20000"}
    command = (sys.executable, "-m", "pytest", "-q", "-k", "not pg15")
    codes = [subprocess.run((*command, proof), env=environment, check=False).returncode for proof in PROOFS]
    sys.exit(max(codes))
