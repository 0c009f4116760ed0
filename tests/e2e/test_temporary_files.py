"""The temporary files of the deployed functions."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from infra.local.system.processes import HAS_PROC, group_members
from tests.support.process_environment import read_environment

if TYPE_CHECKING:
    from infra.local.stack.embedded import EmbeddedStack
    from tests.e2e.http import Http


@pytest.mark.skipif(not HAS_PROC, reason="only Linux shows a process's environment as a file")
def test_functions_use_the_temporary_directory_of_the_emulator(stack: EmbeddedStack, http: Http) -> None:
    """Functions unpack the layer there; these files can reach hundreds of megabytes and are removed with the stack."""
    assert http.grant(str(uuid.uuid4()), user_id=f"u_{uuid.uuid4()}").status == 200
    assert stack.emulator.pid is not None
    found = [read_environment(pid) for pid in group_members(stack.emulator.pid)]
    environments = [environment for environment in found if environment is not None]
    assert {environment.get("TMPDIR") for environment in environments} == {str(stack.emulator.temporary)}
    assert any("AWS_LAMBDA_FUNCTION_NAME" in environment for environment in environments)
    assert any(stack.emulator.temporary.iterdir())
