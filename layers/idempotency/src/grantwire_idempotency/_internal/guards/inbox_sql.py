"""The rule of an inbox for many messages in one statement (C18).

Insert the keys in one order, keep those that were not there, and write rows only for these.
"""

from __future__ import annotations

import re

from grantwire_idempotency.errors import ConfigError

_NEW_MESSAGES = """
  INSERT INTO {table} ({key}, processed_at)
  SELECT {key}, {now} FROM {source} ORDER BY {key}
      ON CONFLICT ({key}) DO NOTHING
  RETURNING {key}
"""

_NAME = re.compile(r"[a-z_][a-z0-9_]*")


def new_messages(*, table: str, key: str, source: str, now: str) -> str:
    """Return the statement that records the messages of `source` and returns the keys of those that were new.

    Use it as the first part of a statement that writes the rows of the new messages, so that both are atomic. It
    requires a unique constraint on the column `key` of `table`, which also has a column `processed_at`. The keys are
    sorted, so that two consumers with the same messages lock them in the same order and cannot deadlock. `now` is an
    SQL expression. Raises ConfigError for a name that is not a plain identifier.
    """
    if invalid := [name for name in (table, key, source) if not _NAME.fullmatch(name)]:
        raise ConfigError([f"{name!r:.80} is not a plain identifier" for name in invalid])
    statement = _NEW_MESSAGES.replace("{now}", now)
    for name, value in (("{table}", table), ("{key}", key), ("{source}", source)):
        statement = statement.replace(name, value)
    return statement
