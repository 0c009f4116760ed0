"""`make schema`, `make proto`, `make lock` and `make wheel`: write generated files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress


def schema(_arguments: Sequence[str], progress: Progress) -> int:
    """Write infra/sql/schema.sql from the other SQL files."""
    from infra.local.stack.schema import write_schema  # noqa: PLC0415  # each command imports only what it needs

    with progress.step("Writing infra/sql/schema.sql"):
        write_schema()
    return 0


def proto(_arguments: Sequence[str], progress: Progress) -> int:
    """Generate the Python code of the events."""
    from infra.local.toolchain import protobuf  # noqa: PLC0415

    with progress.step(f"Generating code from {protobuf.SOURCE}"):
        protobuf.generate()
        protobuf.write_descriptors()
    return 0


def lock(arguments: Sequence[str], progress: Progress) -> int:
    """Update every lock: all packages, or as the options of `uv pip compile` in `arguments` say."""
    from infra.local.toolchain import requirements  # noqa: PLC0415

    for source in (*requirements.SOURCES, *requirements.FROZEN_SOURCES):
        with progress.step(f"Locking {source}"):
            requirements.write_lock(source, arguments or ["--upgrade"])
    return 0


def wheel(arguments: Sequence[str], progress: Progress) -> int:
    """Build the wheels of the library and of the command, in .grantwire/wheel or in the folder of the argument."""
    from infra.local.toolchain.wheel import COMMAND_LINE, FOLDER, LIBRARY, build_wheel  # noqa: PLC0415

    folder = Path(arguments[0]) if arguments else FOLDER
    for title, project in (("idempotency library", LIBRARY), ("grantwire command", COMMAND_LINE)):
        with progress.step(f"Building the wheel of the {title}"):
            path = build_wheel(folder, project)
        progress.print_line(f"{path}")
    return 0
