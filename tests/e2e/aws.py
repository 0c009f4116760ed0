"""The deployed stack as an operator sees it: through the AWS API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import boto3

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.local.stack import Stack


def connection(stack: Stack) -> Any:
    """How an AWS client reaches the stack."""
    return {"endpoint_url": stack.emulator_url, "aws_access_key_id": "local", "aws_secret_access_key": "local"}


def invoke(stack: Stack, name: str, event: Mapping[str, Any] | None = None) -> Any:
    """Invoke a deployed function and wait for what it returns."""
    client = boto3.client("lambda", **connection(stack))
    answer = client.invoke(FunctionName=f"grantwire-local-{name}", Payload=json.dumps(event or {}).encode())
    return json.loads(answer["Payload"].read())
