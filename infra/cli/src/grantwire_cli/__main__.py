"""`grantwire`, and `python -m grantwire_cli`."""

from __future__ import annotations

from grantwire_cli.app import build


def main() -> None:
    """Run the command that the arguments name, and exit with its code."""
    build()(prog_name="grantwire")


if __name__ == "__main__":
    main()
