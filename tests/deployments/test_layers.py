"""X6: the layers of each runtime and architecture. What cannot run here is proven by its shared objects."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from infra.local.deployment.sam import Deployment, Limits
from infra.local.deployment.target import Target, own_target
from infra.local.servers.emulator import EmulatorServer
from tests.support.environments import find_python
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUILD = ROOT / "layers" / "core" / "build.py"
MACHINES = {62: "x86_64", 183: "arm64"}  # `e_machine` of an ELF file
NAMES = {"x86_64": "x86_64", "arm64": "aarch64"}  # in the ABI tag of a file's name
GLIBC_MINORS = {"python3.11": 26}  # Amazon Linux 2; the later runtimes have Amazon Linux 2023
GLIBC_MINOR = 34
TARGETS = [
    Target(f"python3.{minor}", architecture)
    for minor in (11, 12, 13, 14)
    for architecture in ("x86_64", "arm64")
    if (minor, architecture) != (11, "arm64")
]

# The names of the shared objects that each layer must have.
COMPILED = {"core": {"_psycopg", "_message"}, "credentials": {"_cffi_backend", "_sodium"}}

# Every package with compiled code, and the modules that import them.
IMPORTS = """
import sys
sys.path[:0] = sys.argv[1:]
import psycopg, google._upb._message, nacl.bindings, nats, grantwire.database, grantwire.jetstream, grantwire.events
print(psycopg.pq.__impl__)
"""


class SharedObject(NamedTuple):
    """What a shared object needs."""

    name: str
    architecture: str | None
    abi: str | None
    glibc_minor: int


def build(layer: str, target: Target, folder: Path) -> Path | None:
    """Build a layer; return the Python of this machine that can run it, or None. Without it, only source is built."""
    python = find_python(target.runtime.removeprefix("python"))
    runs_here = python is not None and target.architecture == own_target().architecture
    options = [] if runs_here else ["--source-only"]
    command: list[str | Path] = [
        python or sys.executable,
        BUILD,
        layer,
        f"{target.runtime}-{target.architecture}",
        folder,
        *options,
    ]
    # As in `make`: the byte code of programs belongs into a cache, that of a layer next to its source.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder.with_name("cache"))}
    subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return python if runs_here else None


def shared_objects(folder: Path) -> Iterator[SharedObject]:
    """Yield every ELF file of a folder; its ABI is the tag of an extension module, or None for a bundled library."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if content.startswith(b"\x7fELF"):
            tag = re.search(r"\.(cpython-[\w-]+|abi3)\.so$", path.name)
            abi = tag[1] if tag else None
            assert abi or path.parent.name.endswith(".libs"), path
            minors = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", content)]
            yield SharedObject(
                path.name, MACHINES.get(int.from_bytes(content[18:20], "little")), abi, max(minors, default=0)
            )


def misfits(target: Target, found: list[SharedObject]) -> list[SharedObject]:
    """Return the shared objects that a runtime cannot load."""
    version = target.runtime.removeprefix("python").replace(".", "")
    abis = {None, "abi3", f"cpython-{version}-{NAMES[target.architecture]}-linux-gnu"}
    limit = GLIBC_MINORS.get(target.runtime, GLIBC_MINOR)
    return [
        each
        for each in found
        if each.architecture != target.architecture or each.abi not in abis or each.glibc_minor > limit
    ]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.runtime}-{target.architecture}")
def test_every_shared_object_fits_the_runtime(target: Target, tmp_path: Path) -> None:
    """X6: machine, ABI and glibc of each; and if this machine has that Python, it imports every compiled package."""
    python = None
    for layer, names in COMPILED.items():
        python = build(layer, target, tmp_path / layer)
        found = list(shared_objects(tmp_path / layer))
        assert names <= {each.name.partition(".")[0] for each in found}
        assert misfits(target, found) == []
    assert not COMPILED["credentials"] & {path.name.partition(".")[0] for path in (tmp_path / "core").rglob("*.so")}
    if python is None:
        return
    tag = f"cpython-{target.runtime.removeprefix('python').replace('.', '')}"
    for package in ("core/grantwire", "core/psycopg", "credentials/nacl"):
        for source in (tmp_path / package).rglob("*.py"):
            assert (source.parent / "__pycache__" / f"{source.stem}.{tag}.pyc").exists(), source
    folders = [str(tmp_path / layer) for layer in COMPILED]
    program: list[str | Path] = [python, "-I", "-S", "-B", "-c", IMPORTS, *folders]
    result = subprocess.run(program, capture_output=True, text=True, check=False, cwd="/")
    assert (result.returncode, result.stdout) == (0, "binary\n"), result.stderr


def test_layer_of_another_target_does_not_fit(tmp_path: Path) -> None:
    """X6: the comparison finds a wrong architecture and a wrong version."""
    build("credentials", Target("python3.13", "arm64"), tmp_path / "python")
    found = list(shared_objects(tmp_path / "python"))
    for other in (Target("python3.13", "x86_64"), Target("python3.14", "arm64"), Target("python3.12", "arm64")):
        assert {each.name.partition(".")[0] for each in misfits(other, found)} >= {"_cffi_backend"}


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("python3.11-arm64", "There is no build for python3.11 on arm64"),
        ("python3.14-x86_64" if sys.version_info[1] != 14 else "python3.13-x86_64", "must be built with it, not with"),
    ],
)
def test_impossible_build_is_refused_with_the_reason(target: str, sentence: str, tmp_path: Path) -> None:
    """X6: nothing is downloaded."""
    options = ["--source-only"] if target.endswith("arm64") else []
    command: list[str | Path] = [sys.executable, BUILD, "core", target, tmp_path / "python", *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert sentence in result.stderr


def test_sam_builds_for_the_parameters(tmp_path: Path) -> None:
    """X6: `sam build --parameter-overrides Runtime=…` passes the target on to the layer, and its Python is used."""
    own = own_target()
    others = [target for target in TARGETS if target.architecture == own.architecture and target != own]
    target = next((target for target in others if find_python(target.runtime.removeprefix("python"))), None)
    if target is None:
        pytest.skip("this machine has only one of the supported Pythons")
    limits = Limits(runs_containers=True)
    deployment = Deployment(tmp_path, EmulatorServer(tmp_path / "aws"), {}, target=target, limits=limits)
    python = find_python(target.runtime.removeprefix("python"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{python.parent}:/usr/bin:/bin" if python else "")
        deployment.build_functions()
    core, credentials = (deployment.build / name / "python" for name in ("CoreLayer", "CredentialsLayer"))
    for layer, package in ((core, "grantwire"), (credentials, "nacl")):
        assert misfits(target, list(shared_objects(layer))) == []
        assert list((layer / package / "__pycache__").glob(f"*.cpython-3{target.runtime[-2:]}.pyc"))
