"""The events' protocol buffer: code made by `make proto`, compared and held against the release by `make check`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from infra.local.environments import CHECKOUT
from infra.local.errors import LocalStackError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress

PROTO = CHECKOUT / "proto"
RELEASED = PROTO / "released" / "v1.binpb"
SOURCE = "grantwire/events/v1/entitlement_event.proto"
PYTHON = CHECKOUT / "layers" / "core" / "python"


def proto(_arguments: Sequence[str], progress: Progress) -> int:
    """Generate the code anew."""
    with progress.step(f"Generating code from {SOURCE}"):
        generate(PYTHON)
    return 0


def generate(target: Path) -> list[Path]:
    """Write the generated modules below `target`, and name them."""
    _run(
        sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"--python_out={target}", f"--pyi_out={target}", SOURCE
    )
    module = Path(SOURCE).with_suffix("")
    return [target / f"{module}_pb2{suffix}" for suffix in (".py", ".pyi")]


def problems(source: Path = PROTO) -> list[str]:
    """What is wrong: style, a change that would break a consumer of the release, or code that is not the source's."""
    found = []
    buf = Path(sys.executable).with_name("buf")
    commands: list[list[str | Path]] = [[buf, "lint", source], [buf, "breaking", source, "--against", RELEASED]]
    for command in commands:
        try:
            _run(*command)
        except LocalStackError as error:
            found.append(str(error))
    with tempfile.TemporaryDirectory() as folder:
        for fresh in generate(Path(folder)):
            committed = PYTHON / fresh.relative_to(folder)
            if committed.read_bytes() != fresh.read_bytes():
                found.append(f"{committed.relative_to(CHECKOUT)} does not follow from {SOURCE}: run `make proto`")
    return found


def _run(*command: str | Path) -> None:
    answer = subprocess.run(command, cwd=PROTO, capture_output=True, text=True, check=False)
    if answer.returncode:
        name = " ".join(str(part) for part in command[:2])
        raise LocalStackError(f"{name} failed:\n{answer.stdout}{answer.stderr}".rstrip())


if __name__ == "__main__":
    if wrong := problems():
        sys.exit("\n".join(wrong))
