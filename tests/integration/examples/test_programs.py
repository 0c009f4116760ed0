"""Each program of docs/examples runs alone, as a process of its own, and prints what its docstring says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.programs import EXAMPLES, list_programs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.programs import Program


@pytest.mark.parametrize("program", list_programs(EXAMPLES), ids=lambda program: program.name)
def test_program_runs_alone(program: Program, tmp_path: Path) -> None:
    """Nothing of the service or of the tests is on its path."""
    assert program.run(sys.executable, tmp_path, {}) == program.expected_output
