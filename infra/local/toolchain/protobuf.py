"""The protocol buffer of the events.

`make proto` generates its code. `make check` verifies that the code is current and compatible with the release.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from infra.local.errors import CommandError
from infra.local.paths import CHECKOUT, LAYER
from infra.local.system import programs

PROTO = CHECKOUT / "proto"
RELEASED = PROTO / "released" / "v1.binpb"
SOURCE = "grantwire/events/v1/entitlement_event.proto"
# For the grantwire command, which has no generated code and decodes events with this description of the message.
DESCRIPTORS = CHECKOUT / "infra" / "cli" / "src" / "grantwire_cli" / "entitlement_event.binpb"


def generate(target: Path = LAYER) -> list[Path]:
    """Write the generated modules below `target` and return their paths."""
    _run(
        sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"--python_out={target}", f"--pyi_out={target}", SOURCE
    )
    module = Path(SOURCE).with_suffix("")
    return [target / f"{module}_pb2{suffix}" for suffix in (".py", ".pyi")]


def write_descriptors(path: Path = DESCRIPTORS) -> None:
    """Write the description of the event and of what it imports."""
    _run(sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", "--include_imports", f"-o{path}", SOURCE)


def find_problems(source: Path = PROTO) -> list[str]:
    """Return the problems: style, a change that breaks consumers of the release, or code that is not current."""
    problems = []
    buf = programs.program_path("buf")
    commands: list[list[str | Path]] = [[buf, "lint", source], [buf, "breaking", source, "--against", RELEASED]]
    for command in commands:
        try:
            _run(*command)
        except CommandError as error:
            problems.append(str(error))
    with tempfile.TemporaryDirectory() as folder:
        for generated in generate(Path(folder)):
            committed = LAYER / generated.relative_to(folder)
            if committed.read_bytes() != generated.read_bytes():
                problems.append(_not_current(committed))
        descriptors = Path(folder) / DESCRIPTORS.name
        write_descriptors(descriptors)
        if not DESCRIPTORS.exists() or DESCRIPTORS.read_bytes() != descriptors.read_bytes():
            problems.append(_not_current(DESCRIPTORS))
    return problems


def _not_current(file: Path) -> str:
    return f"{file.relative_to(CHECKOUT)} is not current with {SOURCE}: run `make proto`"


def _run(*command: str | Path) -> None:
    result = subprocess.run(command, cwd=PROTO, capture_output=True, text=True, check=False)
    if result.returncode:
        name = " ".join(str(part) for part in command[:2])
        raise CommandError(f"{name} failed:\n{result.stdout}{result.stderr}".rstrip())


if __name__ == "__main__":
    if problems := find_problems():
        sys.exit("\n".join(problems))
