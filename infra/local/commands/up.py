"""`make up`: start the checkout's stack and print how to use it."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from infra.local.stack import selection, webhook
from infra.local.toolchain.environments import command_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress

READY = """
Grantwire is up.
  API         {api}
  console     {api}/console  (sign in with the token that `make env` prints)
  PostgreSQL  {database}
  NATS        {nats}
              {nats_reader}  (reads events)
  passwords   in {description}, which only you can read
  local AWS   {emulator}
  receiver    {receiver}

Try it:
  eval "$(make -s env)"
  curl -si -X POST "$GRANTWIRE_API/v1/entitlements/grants" \\
    -H "Authorization: Bearer $GRANTWIRE_TOKEN" -H "Idempotency-Key: p_456" \\
    -H "Content-Type: application/json" \\
    -d '{{"user_id":"u_123","stock_keeping_unit":"item1","reason":"purchase","purchase_id":"p_456"}}'

The command line, which finds this stack in every folder of the checkout:
  {command} status
  {command} entitlements list u_123

Next: `make demo` sends more requests, `make status` and `make logs` show the state, `make down` stops the stack.
"""


ROOT_WARNING = """\
Warning: you are root, so the functions and the AWS emulator run as root too.
  Use an ordinary account; Grantwire needs no privileges.
"""


def up(arguments: Sequence[str], progress: Progress) -> int:
    """Start the checkout's stack and print its addresses and an example request."""
    parser = argparse.ArgumentParser(prog="infra.local up")
    parser.add_argument(
        "stack", nargs="?", choices=selection.STACK_KINDS, default=selection.STACK_KINDS[0], help="kind of the stack"
    )
    parser.add_argument("--webhook", metavar="URL", help="send notifications there; off: to the log again")
    options = parser.parse_args(arguments)
    stack = selection.select_stack(options.stack, progress)
    if options.webhook:
        webhook.choose(stack.state, options.webhook)
    if os.geteuid() == 0:
        progress.print_line(ROOT_WARNING)
    stack.up()
    progress.print_line(
        READY.format(
            api=stack.api_url,
            database=without_password(stack.database_url),
            nats=without_password(stack.nats_url),
            nats_reader=without_password(stack.nats_reader_url),
            description=relative_to_folder(stack.description),
            emulator=stack.emulator_url,
            command=relative_to_folder(command_path()),
            receiver=webhook.describe(stack.state),
        )
    )
    return 0


def without_password(url: str) -> str:
    """Return an address as it may be shown: a terminal keeps what it prints, and so does the log of a CI."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=re.sub(r":[^:@]*@", "@", parts.netloc)))


def relative_to_folder(path: Path) -> Path:
    """Return a path as it is shortest to type in the current folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
