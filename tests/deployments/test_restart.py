"""A deployed stack after a restart of the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.client import GRANTS
from tests.support.contract import assert_is_error

if TYPE_CHECKING:
    from infra.local.stack.embedded import EmbeddedStack
    from tests.e2e.http import Http


def test_deployment_survives_a_restart_of_the_emulator_and_a_second_start(stack: EmbeddedStack, http: Http) -> None:
    """E5: nothing is deployed again, and the gateway still responds as on AWS."""
    stack.emulator.stop()
    stack.emulator.start()
    assert stack.deployment.is_current()
    stack.up()
    unknown = http.send("GET", "/v1/other")
    assert_is_error("NotFound", unknown.status, unknown.headers, unknown.body)
    assert http.send("DELETE", GRANTS).status == 405
