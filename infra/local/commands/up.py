"""`make up`: bring the checkout's stack up and say how to use it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from infra.local.stack import kinds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress

READY = """
Grantwire is up.
  API         {api}
  PostgreSQL  {database}
  NATS        {nats}
  local AWS   {emulator}

Try it:
  eval "$(make -s env)"
  curl -si -X POST "$GRANTWIRE_API/v1/entitlements/grants" \\
    -H "Authorization: Bearer $GRANTWIRE_TOKEN" -H "Idempotency-Key: p_456" \\
    -H "Content-Type: application/json" \\
    -d '{{"user_id":"u_123","stock_keeping_unit":"item1","reason":"purchase","purchase_id":"p_456"}}'

`make demo` shows more, `make status` and `make logs` how it is, `make down` stops it.
"""


def up(arguments: Sequence[str], progress: Progress) -> int:
    """Bring the checkout's stack up and say how to use it."""
    parser = argparse.ArgumentParser(prog="infra.local up")
    parser.add_argument("stack", nargs="?", choices=kinds.KINDS, default=kinds.KINDS[0], help="which kind")
    stack = kinds.chosen(parser.parse_args(arguments).stack, progress)
    stack.up()
    progress.say(
        READY.format(
            api=stack.api_url,
            database=stack.database_url,
            nats=stack.nats_url,
            emulator=stack.emulator_url,
        )
    )
    return 0
