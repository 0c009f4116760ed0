"""A program with a transaction that writes entitlements and stays open until the program is ended."""

from __future__ import annotations

import os
import signal

import psycopg

if __name__ == "__main__":
    with psycopg.connect(os.environ["DATABASE_URL"], application_name="make-fault") as connection:
        connection.execute("LOCK TABLE entitlements IN ROW EXCLUSIVE MODE")
        signal.pause()
