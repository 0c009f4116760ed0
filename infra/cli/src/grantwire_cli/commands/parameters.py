"""Arguments and options that several commands share."""

from typing import Annotated

import typer

UserId = Annotated[str, typer.Argument(metavar="USER", help="The user's id.", show_default=False)]
Sku = Annotated[str, typer.Argument(metavar="SKU", help="The stock keeping unit.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", help="Why, which is recorded.", show_default=False)]
Actor = Annotated[
    str | None, typer.Option("--actor", help="Who acts, which is recorded (default: your account and host).")
]
Key = Annotated[
    str | None, typer.Option("--key", help="The idempotency key (default: a new one, printed before the request).")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="The maximum number of entries.")]
