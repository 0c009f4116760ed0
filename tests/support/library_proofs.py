"""The slow proofs of the idempotency library, for `make check`: the installed wheel, and ten times as many checks."""

from __future__ import annotations

import os
import subprocess
import sys

# One pytest for each: both start the PostgreSQL of their run, and a run has one.
PROOFS = (
    "tests/installed",
    "layers/idempotency/tests/installed",
    "layers/idempotency/tests/integration/test_threads_and_forks.py",
)

if __name__ == "__main__":
    environment = {**os.environ, "GRANTWIRE_THREAD_CHECKS": "20000"}
    command = (sys.executable, "-m", "pytest", "-q", "-k", "not pg15")
    codes = [subprocess.run((*command, proof), env=environment, check=False).returncode for proof in PROOFS]
    sys.exit(max(codes))
