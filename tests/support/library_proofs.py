"""The slow proofs of the idempotency library, for `make check`: the installed wheel, and ten times as many checks."""

from __future__ import annotations

import os
import sys

import pytest

if __name__ == "__main__":
    os.environ["GRANTWIRE_THREAD_CHECKS"] = "20000"
    sys.exit(
        pytest.main(
            ["-q", "-k", "not pg15", "tests/library", "tests/integration/idempotency/test_threads_and_forks.py"]
        )
    )
