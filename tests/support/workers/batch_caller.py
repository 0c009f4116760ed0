"""Sends a batch in a separate process, which a test can kill.

`python -m tests.support.workers.batch_caller URL` reads the body from standard input and prints the response.
"""

from __future__ import annotations

import sys

from tests.support.client import BATCHES, Client, event

if __name__ == "__main__":
    with Client(sys.argv[1]) as client:
        print(client.send(event("POST", BATCHES, body=sys.stdin.read())).body)  # noqa: T201
