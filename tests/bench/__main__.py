"""`python -m tests.bench`; `make bench` calls it.

Every process that the benchmark starts imports this module again, so its own imports happen only in the main process.
"""

from __future__ import annotations

if __name__ == "__main__":
    import sys

    from tests.bench.program import main

    sys.exit(main(sys.argv[1:]))
