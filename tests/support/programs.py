"""The programs of the documentation. Each is a file in a folder of examples that runs alone.

Its docstring contains its complete output, indented. If a page shows only a part of it, the part is between the lines
`# shown from here` and `# shown to here`.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.paths import LIBRARY_HOME, ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

EXAMPLES = ROOT / "docs" / "examples"
LIBRARY_EXAMPLES = LIBRARY_HOME / "examples"
_SHOWN = re.compile(r"^# shown from here\n(?P<part>.*?)^# shown to here$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the documentation."""

    path: Path

    @property
    def name(self) -> str:
        """The name in a page."""
        return self.path.stem

    @property
    def shown(self) -> str:
        """The code that a page shows: the marked part with the name of its file, or the whole file."""
        text = self.path.read_text()
        match = _SHOWN.search(text)
        return f"# part of {self.path.parent.name}/{self.path.name}\n{match['part'].strip()}" if match else text.strip()

    @property
    def expected_output(self) -> str:
        """The output that the docstring promises."""
        docstring = ast.get_docstring(ast.parse(self.path.read_text())) or ""
        return textwrap.dedent("".join(re.findall(r"^ {4}.*\n?", docstring, re.MULTILINE))).strip("\n")

    def run(self, python: str | Path, folder: Path, variables: Mapping[str, str]) -> str:
        """Run the program in a folder, with these variables alone, and return its output."""
        environment = {"PATH": os.environ["PATH"], **variables}
        process = subprocess.run(
            [python, self.path], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stderr
        return process.stdout.strip("\n")


def list_programs(*folders: Path) -> list[Program]:
    """Return the programs of these folders; by default, every program of the documentation."""
    return [Program(path) for folder in folders or (EXAMPLES, LIBRARY_EXAMPLES) for path in sorted(folder.glob("*.py"))]
