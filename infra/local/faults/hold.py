"""A program with an open transaction, which holds what its argument names until the program is ended.

`entitlements`: the transaction writes entitlements. `lease`: it holds the row of a command whose worker was killed, so
that no other worker takes the lease over. After the end of the program a worker does, and executes the command.
"""

from __future__ import annotations

import os
import signal
import sys

import psycopg

WRITE_ENTITLEMENTS = "LOCK TABLE entitlements IN ROW EXCLUSIVE MODE"
CLAIM_COMMAND = """
INSERT INTO operator_commands (command_id, kind, arguments, actor, reason, source, status, started_at, locked_by,
                               locked_at, lease_until)
VALUES (gen_random_uuid(), 'read_model.verify', '{}', 'make fault', 'practice', 'make fault', 'RUNNING', now(),
        'make fault', now(), now() + interval '5 seconds')
"""
HOLD_COMMAND = "SELECT FROM operator_commands WHERE locked_by = 'make fault' FOR UPDATE"

if __name__ == "__main__":
    with psycopg.connect(os.environ["DATABASE_URL"], application_name="make-fault") as connection:
        if sys.argv[1] == "lease":
            connection.execute(CLAIM_COMMAND)
            connection.commit()
            connection.execute(HOLD_COMMAND)
        else:
            connection.execute(WRITE_ENTITLEMENTS)
        signal.pause()
