"""The deployed stack keeps its temporary files to itself."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from infra.local.system.processes import HAS_PROC, group_members
from tests.support.environments import environment_of

if TYPE_CHECKING:
    from infra.local.stack.embedded import EmbeddedStack
    from tests.e2e.http import Http


@pytest.mark.skipif(not HAS_PROC, reason="only Linux shows a process's environment as a file")
def test_a_function_writes_where_the_emulator_does(stack: EmbeddedStack, http: Http) -> None:
    """A worker unpacks the layer there: hundreds of megabytes after a while, which end with the stack."""
    assert http.grant(str(uuid.uuid4()), user_id=f"u_{uuid.uuid4()}").status == 200
    assert stack.emulator.pid is not None
    found = [environment_of(pid) for pid in group_members(stack.emulator.pid)]
    environments = [one for one in found if one is not None]
    assert {one.get("TMPDIR") for one in environments} == {str(stack.emulator.temporary)}
    assert any("AWS_LAMBDA_FUNCTION_NAME" in one for one in environments)
    assert any(stack.emulator.temporary.iterdir())
