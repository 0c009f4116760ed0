"""Checks of the deployment on the local AWS, with the checks for a stack on AWS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from grantwire_cli.checks.deployment import check_deployment
from grantwire_cli.checks.findings import Finding, ok, problem, warning
from infra.local.deployment import aws
from infra.local.deployment.sam import STACK_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.stack.deployed import DeployedStack

UP = "make up"


def check_local_deployment(stack: DeployedStack) -> Iterator[Finding]:
    """Yield the findings about the deployed stack, and whether it is the checkout's current state."""
    try:
        yield from check_deployment(
            lambda service: aws.client(service, stack.emulator_url, stack.aws.access_key), STACK_NAME, deploy=UP
        )
    except (BotoCoreError, ClientError) as error:
        yield problem("deployment", f"the stack is not deployed: {error}", UP)
        return
    if stack.deployment.is_current():
        yield ok("deployment", "the functions and the layer are those of this checkout")
    else:
        yield warning("deployment", "the checkout has changed since the functions were deployed", UP)
    if stack.is_healthy():
        yield ok("API", f"{stack.api_url} responds with data from the database")
    else:
        yield problem("API", "the API does not respond with data from the database", "make logs; then make up")
