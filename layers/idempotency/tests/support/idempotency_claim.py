"""Claims a key in a separate process, prints the type of the check result, and waits until it is killed.

`python -m layers.idempotency.tests.support.idempotency_claim STORE URL KEY SECONDS`
"""

from __future__ import annotations

import sys
from datetime import timedelta

from grantwire_idempotency import Key
from layers.idempotency.tests.integration.harness import HARNESSES

if __name__ == "__main__":
    name, url, key, seconds = sys.argv[1:]
    (store,) = HARNESSES[name](url).stores(1)
    print(type(store.check(Key(key), timedelta(seconds=int(seconds)))).__name__, flush=True)  # noqa: T201
    sys.stdin.read()
