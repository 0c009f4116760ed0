"""The product's code from the layer, for commands that do the same as a deployed function."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.paths import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

# Settings for the servers of this machine, which do not use TLS.
PLAINTEXT = {"DATABASE_TLS": "off", "NATS_TLS": "off", "PLAINTEXT_ALLOWED": "true"}

# Longer than in a function: no Lambda timeout ends a command.
STATEMENT_TIMEOUT = "15m"


def add_layer_to_path() -> None:
    """Make `import grantwire` and `import grantwire_idempotency` find the packages of this checkout."""
    sys.path[:0] = (folder for folder in map(str, PACKAGES) if folder not in sys.path)


@contextlib.contextmanager
def product_code(hint: str = "") -> Iterator[None]:
    """Make the layer importable and silence its log inside the block, because a command prints its own messages.

    Raises CommandError, with `hint`, for an error of the layer.
    """
    add_layer_to_path()
    from grantwire.errors import GrantwireError  # noqa: PLC0415  # importable only here
    from grantwire.observability import logger  # noqa: PLC0415

    level = logger.log_level
    logger.setLevel("CRITICAL")
    try:
        yield
    except GrantwireError as error:
        raise CommandError(f"{error}", hint=hint) from error
    finally:
        logger.setLevel(level)
