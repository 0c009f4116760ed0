"""The code that runs before anything is installed: standard library only, and a check of the Python version."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from grantwire_cli import checkout
from infra.local.deployment.template import load_template
from infra.local.main import COMMANDS, Needs
from infra.local.paths import CACHE
from infra.local.toolchain import interpreter
from infra.local.toolchain.environments import python_environment
from tests.support.paths import ROOT

# -I and -S: neither the environment nor the interpreter's site-packages add anything to the path.
ISOLATED_PYTHON = [sys.executable, "-I", "-S", "-c"]
IMPORTS = "import sys, json, importlib; sys.path.insert(0, sys.argv[1]); "
# Any Python 3 of the machine may have to parse these before it is refused.
CALLED_BY_GRANTWIRE = {"state", "findings"}
PARSED_BY_ANY_PYTHON = ("__init__.py", "__main__.py", "toolchain/__init__.py", "toolchain/interpreter.py")


class Version(NamedTuple):
    """A stand-in for `sys.version_info`."""

    major: int
    minor: int


def _run_isolated(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*ISOLATED_PYTHON, IMPORTS + program, str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=60)


@pytest.mark.parametrize(
    "module", sorted({command.module for command in COMMANDS.values() if command.needs is Needs.NOTHING})
)
def test_command_without_needs_imports_the_standard_library_only(module: str) -> None:
    """`make down` works in a checkout with broken environments."""
    result = _run_isolated(f"importlib.import_module('infra.{module}'); print('imported')")
    assert (result.returncode, result.stdout) == (0, "imported\n"), result.stderr


def test_main_program_imports_the_standard_library_only() -> None:
    """It creates the environments, so it cannot need them."""
    result = _run_isolated("from infra.local.main import main; main(['--help'])")
    assert (result.returncode, result.stderr) == (0, "")
    assert all(name in result.stdout for name in COMMANDS)


def test_every_command_has_a_function_and_a_make_target() -> None:
    """Each command's module can be imported in the development environment. Two are for the grantwire command only."""
    targets = (ROOT / "Makefile").read_text()
    for name, command in COMMANDS.items():
        module: Any = __import__(f"infra.{command.module}", fromlist=["function"])
        assert callable(getattr(module, name.replace("-", "_"))), name
        assert (f"\n{name}: ; $(RUN) {name}" in targets) == (name not in CALLED_BY_GRANTWIRE)


@pytest.mark.parametrize("name", PARSED_BY_ANY_PYTHON)
def test_any_python_3_can_parse_the_version_check(name: str) -> None:
    """A syntax error would not say which Python is needed."""
    ast.parse((ROOT / "infra" / "local" / name).read_text(), feature_version=(3, 6))


def test_only_modules_for_any_python_are_imported_before_the_version_check() -> None:
    """Another module could fail with a syntax error before the check."""
    program = "sys.argv[1:] = ['--help']; import infra.local.__main__; print(json.dumps(sorted(sys.modules)))"
    result = _run_isolated(program)
    imported = {name for name in json.loads(result.stdout) if name.partition(".")[0] == "infra"}
    assert imported == {
        "infra",
        "infra.local",
        "infra.local.__main__",
        "infra.local.toolchain",
        "infra.local.toolchain.interpreter",
    }


def test_missing_venv_module_is_reported_with_the_package_to_install() -> None:
    """S4, S5: one command works on a new machine, or says what to install. Debian ships Python without venv."""
    result = _run_isolated(
        "sys.modules['venv'] = None; sys.modules['ensurepip'] = None; import runpy; "
        "runpy.run_module('infra.local', run_name='__main__')",
        "up",
    )
    assert result.returncode == 1
    assert "venv and ensurepip module is missing" in result.stderr
    assert "apt install python3 python3-venv" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("version", [(3, 10), (3, 15)])
def test_wrong_python_version_is_refused_with_the_versions_to_install(
    version: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4, S5: the version is refused before anything is created."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", Version(*version))
        with pytest.raises(SystemExit) as refusal:
            interpreter.check()
    assert re.match(
        r"Grantwire needs Python 3\.11 to 3\.14; .*\nDebian, Ubuntu: apt install python3 python3-venv",
        refusal.value.args[0],
    )


def test_every_supported_python_has_a_runtime_and_the_lists_agree() -> None:
    """X6: the bootstrap, the Makefile, the command and the template name the same versions."""
    oldest, newest = interpreter.OLDEST, interpreter.NEWEST
    versions = [f"python3.{minor}" for minor in range(oldest[1], newest[1] + 1)]
    assert load_template()["Parameters"]["Runtime"]["AllowedValues"] == versions
    assert (oldest, newest) == (checkout.OLDEST_PYTHON, checkout.NEWEST_PYTHON)
    makefile = (ROOT / "Makefile").read_text()
    assert f"not {oldest} <= sys.version_info[:2] <= {newest}" in makefile
    assert set(re.findall(r"python3\.\d+(?= )", makefile)) == set(versions)
    targets = {folder.name for folder in (ROOT / "layers" / "core" / "targets").iterdir()}
    assert targets == {f"{version}-{machine}" for version in versions for machine in ("x86_64", "arm64")}


def test_programs_keep_their_byte_code_in_the_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the environment forbids byte code: otherwise each program would compile all that it imports."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    program = "import sys; print(sys.dont_write_bytecode, sys.pycache_prefix)"
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=python_environment(), capture_output=True, text=True, check=True)
    assert result.stdout == f"False {CACHE / 'python'}\n"
