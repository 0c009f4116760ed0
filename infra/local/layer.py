"""The product's own code, for the commands that do what a deployed function does."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.paths import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

# What the product's code must be told about servers of this machine: that they speak without TLS.
PLAINTEXT = {"DATABASE_TLS": "off", "NATS_TLS": "off", "PLAINTEXT_ALLOWED": "true"}

# Nothing ends a command after a while, as Lambda ends a function.
STATEMENT_TIMEOUT = "15m"


def make_importable() -> None:
    """Let `import grantwire` and `import grantwire_idempotency` find the layer of this checkout."""
    sys.path[:0] = (folder for folder in map(str, PACKAGES) if folder not in sys.path)


@contextlib.contextmanager
def product_code(hint: str = "") -> Iterator[None]:
    """Make the layer importable and its log silent while inside; its errors become a `CommandError`.

    The log's lines are for machines; a command prints what a person needs.
    """
    make_importable()
    from grantwire.errors import GrantwireError  # noqa: PLC0415  # found only now
    from grantwire.observability import logger  # noqa: PLC0415

    level = logger.log_level
    logger.setLevel("CRITICAL")
    try:
        yield
    except GrantwireError as error:
        raise CommandError(f"{error}", hint=hint) from error
    finally:
        logger.setLevel(level)
