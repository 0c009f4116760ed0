"""What runs before anything is installed: the standard library alone, and a wrong Python is told at once."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from infra.local.main import COMMANDS, Needs
from infra.local.toolchain import interpreter
from tests.support.paths import ROOT

# -I and -S: neither the environment nor the interpreter's own site-packages add anything to the path.
ALONE = [sys.executable, "-I", "-S", "-c"]
IMPORTS = "import sys, json, importlib; sys.path.insert(0, sys.argv[1]); "
# Read by whatever Python 3 the machine has, before it is refused.
ANY_PYTHON = ("__init__.py", "__main__.py", "toolchain/__init__.py", "toolchain/interpreter.py")


class Version(NamedTuple):
    """As `sys.version_info`."""

    major: int
    minor: int


def _alone(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ALONE, IMPORTS + program, str(ROOT), *words], capture_output=True, text=True, check=False, cwd="/", timeout=60
    )


@pytest.mark.parametrize("module", sorted({one.module for one in COMMANDS.values() if one.needs is Needs.NOTHING}))
def test_a_command_that_needs_nothing_imports_the_standard_library_only(module: str) -> None:
    """`make down` works in a checkout whose environments are broken."""
    done = _alone(f"importlib.import_module('infra.{module}'); print('imported')")
    assert (done.returncode, done.stdout) == (0, "imported\n"), done.stderr


def test_the_program_itself_imports_the_standard_library_only() -> None:
    """It makes the environments, so it cannot need them."""
    done = _alone("from infra.local.main import main; main(['--help'])")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(name in done.stdout for name in COMMANDS)


def test_every_command_has_its_function() -> None:
    """In the environment that it runs in; and a target of the Makefile."""
    targets = (ROOT / "Makefile").read_text()
    for name, command in COMMANDS.items():
        module: Any = __import__(f"infra.{command.module}", fromlist=["function"])
        assert callable(getattr(module, name.replace("-", "_"))), name
        assert f"\n{name}: ; $(RUN) {name}" in targets


@pytest.mark.parametrize("name", ANY_PYTHON)
def test_any_python_3_can_read_what_refuses_it(name: str) -> None:
    """A syntax error would say nothing about Python 3.11."""
    ast.parse((ROOT / "infra" / "local" / name).read_text(), feature_version=(3, 6))


def test_only_what_any_python_can_read_is_imported_before_the_check() -> None:
    """A module of ours that is newer would fail first."""
    program = "sys.argv[1:] = ['--help']; import infra.local.__main__; print(json.dumps(sorted(sys.modules)))"
    done = _alone(program)
    ours = {name for name in json.loads(done.stdout) if name.partition(".")[0] == "infra"}
    assert ours == {
        "infra",
        "infra.local",
        "infra.local.__main__",
        "infra.local.toolchain",
        "infra.local.toolchain.interpreter",
    }


def test_missing_venv_module_is_reported_with_the_package_to_install() -> None:
    """S4, S5: one command works on a fresh machine, or says what to install. Debian ships Python without venv."""
    done = _alone(
        "sys.modules['venv'] = None; sys.modules['ensurepip'] = None; import runpy; "
        "runpy.run_module('infra.local', run_name='__main__')",
        "up",
    )
    assert done.returncode == 1
    assert "venv and ensurepip module is missing" in done.stderr
    assert "apt install python3.11-venv" in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_python_version_is_refused_with_the_version_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4, S5: the refusal comes before anything is created."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", Version(3, 10))
        with pytest.raises(SystemExit) as refusal:
            interpreter.check()
    assert re.match(
        r"Grantwire needs Python 3\.11; .*\nDebian, Ubuntu: apt install python3\.11-venv", refusal.value.args[0]
    )
