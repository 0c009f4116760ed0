"""The deployed stack as an operator sees it: through the AWS API."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from infra.local.deployment import aws
from infra.local.deployment.sam import STACK_NAME
from infra.local.system.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infra.local.stack.embedded import EmbeddedStack

LOGGED_WITHIN = 20.0


def client(stack: EmbeddedStack, service: str) -> Any:
    """A client of one of the stack's AWS services."""
    return _client(service, stack.emulator_url)


@cache
def _client(service: str, url: str) -> Any:
    """Made once: it takes a second."""
    return aws.client(service, url)


def logged(stack: EmbeddedStack, name: str, complete: Callable[[str], bool]) -> str:
    """What a deployed function wrote, as CloudWatch has it, as soon as it is complete."""

    def look() -> str:
        events = client(stack, "logs").filter_log_events(logGroupName=f"/aws/lambda/{STACK_NAME}-{name}")["events"]
        text = "\n".join(event["message"] for event in events)
        return text if complete(text) else ""

    text = wait_for(look, LOGGED_WITHIN, every=0.2)
    assert text, f"{name} did not log it"
    return text


def invoke(stack: EmbeddedStack, name: str, event: Mapping[str, Any] | None = None) -> Any:
    """Invoke a deployed function and wait for what it returns."""
    payload = json.dumps(event or {}).encode()
    answer = client(stack, "lambda").invoke(FunctionName=f"{STACK_NAME}-{name}", Payload=payload)
    return json.loads(answer["Payload"].read())
