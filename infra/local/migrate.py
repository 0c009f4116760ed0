"""Apply the migrations to DATABASE_URL: a program of its own, because the layer logs to standard output."""

from __future__ import annotations

import os
import sys

from infra.local.environments import CHECKOUT

LAYER = CHECKOUT / "layers" / "core" / "python"


def main() -> None:
    """Run the same code as the deployed migration function."""
    sys.path.insert(0, str(LAYER))
    from grantwire.migrations import migrate  # noqa: PLC0415  # found only now

    applied = migrate(os.environ["DATABASE_URL"], CHECKOUT / "infra" / "migrations")
    print(f"applied: {', '.join(applied) or 'nothing new'}")


if __name__ == "__main__":
    main()
