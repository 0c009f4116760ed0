"""The deployed stack through the AWS API, as an operator uses it."""

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

LOG_TIMEOUT_SECONDS = 75.0


def client(stack: EmbeddedStack, service: str) -> Any:
    """Return a client for an AWS service of the stack."""
    return _client(service, stack.emulator_url, stack.aws.access_key)


@cache
def _client(service: str, url: str, access_key: str) -> Any:
    """Return a cached client, because creating one takes a second."""
    return aws.client(service, url, access_key)


def wait_for_log(stack: EmbeddedStack, name: str, is_complete: Callable[[str], bool]) -> str:
    """Wait until the CloudWatch log of a function is complete, and return its text."""

    def poll() -> str:
        events = client(stack, "logs").filter_log_events(logGroupName=f"/aws/lambda/{STACK_NAME}-{name}")["events"]
        text = "\n".join(event["message"] for event in events)
        return text if is_complete(text) else ""

    text = wait_for(poll, LOG_TIMEOUT_SECONDS, every=0.2)
    assert text, f"the log of {name} was not complete within {LOG_TIMEOUT_SECONDS} s"
    return text


def invoke(stack: EmbeddedStack, name: str, event: Mapping[str, Any] | None = None) -> Any:
    """Invoke a deployed function and return its result."""
    payload = json.dumps(event or {}).encode()
    response = client(stack, "lambda").invoke(FunctionName=f"{STACK_NAME}-{name}", Payload=payload)
    return json.loads(response["Payload"].read())
