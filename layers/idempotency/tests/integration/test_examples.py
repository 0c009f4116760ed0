"""C14, C16: each program of the examples runs alone, as a process of its own, and prints what its docstring says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from grantwire_idempotency._internal.postgres import schema
from tests.support.paths import LIBRARY
from tests.support.programs import LIBRARY_EXAMPLES, list_programs
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.programs import Program
    from tests.support.servers import Databases
    from tests.support.valkey import ValkeyServer


@pytest.fixture(scope="module")
def library_url(databases: Databases) -> Iterator[str]:
    """Address of a database with the schema of the library alone."""
    url = databases.empty()
    schema.apply(url)
    yield url
    databases.drop(url)


@newest_postgres
@pytest.mark.usefixtures("valkey")
@pytest.mark.parametrize("program", list_programs(LIBRARY_EXAMPLES), ids=lambda program: program.name)
def test_program_runs_alone(program: Program, library_url: str, valkey_server: ValkeyServer, tmp_path: Path) -> None:
    """Nothing of the service or of the tests is on its path."""
    variables = {"DATABASE_URL": library_url, "REDIS_URL": valkey_server.url, "PYTHONPATH": str(LIBRARY)}
    assert program.run(sys.executable, tmp_path, variables) == program.expected_output
