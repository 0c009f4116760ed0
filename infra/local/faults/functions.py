"""Faults of functions: other variables, and schedules that are switched off."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from infra.local.deployment import aws
from infra.local.deployment.sam import STACK_NAME
from infra.local.errors import CommandError
from infra.local.system import files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infra.local.stack.deployed import DeployedStack
    from infra.local.stack.embedded import EmbeddedStack

    Change = Callable[[EmbeddedStack], None]

BRIDGE = f"{STACK_NAME}-bridge-events"
DELIVERY = f"{STACK_NAME}-deliver-notifications"
EXPIRY = f"{STACK_NAME}-expire-entitlements"
OPERATIONS = f"{STACK_NAME}-operations"
RELAY = f"{STACK_NAME}-relay-outbox"
SWEEP = f"{STACK_NAME}-sweep-retention"
# Nothing listens on this port.
_UNREACHABLE = {
    "NOTIFICATION_SENDER": "webhook",
    "NOTIFICATION_WEBHOOK_URL": "http://127.0.0.1:9/notifications",
    "NOTIFICATION_WEBHOOK_KEYS": f"whsec_{base64.b64encode(bytes(32)).decode()}",
}
# A notification is a dead letter after two attempts, and the circuit never opens.
REFUSING = _UNREACHABLE | {
    "NOTIFICATION_DELIVERY_MAX_ATTEMPTS": "2",
    "NOTIFICATION_SENDER_BREAKER_FAILURES": "0",
}
# The circuit opens after two attempts, and no notification is a dead letter.
AWAY = _UNREACHABLE | {"NOTIFICATION_DELIVERY_MAX_ATTEMPTS": "", "NOTIFICATION_SENDER_BREAKER_FAILURES": "2"}


def change_function(stack: DeployedStack, function: str, variables: Mapping[str, str]) -> None:
    """Give a deployed function other variables, and keep those that it was deployed with."""
    client = aws.client("lambda", stack.emulator_url, stack.aws.access_key)
    deployed = stack.state / f"{function}.json"
    if not deployed.exists():
        configuration = client.get_function_configuration(FunctionName=function)
        files.write_record(deployed, configuration["Environment"]["Variables"])
    changed = json.loads(deployed.read_text()) | variables
    client.update_function_configuration(FunctionName=function, Environment={"Variables": changed})


def restore_function(stack: DeployedStack, function: str) -> None:
    """Give a function the variables again that it was deployed with; CommandError if it was not changed."""
    deployed = stack.state / f"{function}.json"
    if not deployed.exists():
        raise CommandError(f"{function} was not changed.", hint="`make fault` changes it.")
    change_function(stack, function, {})
    deployed.unlink()


def set_receiver(variables: Mapping[str, str]) -> Change:
    """Return a function that gives delivery another receiver."""

    def make(stack: EmbeddedStack) -> None:
        change_function(stack, DELIVERY, variables)
        stack.aws.invoke_async(DELIVERY)  # the change ends the current run, and the next one is due within a minute

    return make


def restore_receiver(stack: EmbeddedStack) -> None:
    """Give delivery its receiver again."""
    restore_function(stack, DELIVERY)
    stack.aws.invoke_async(DELIVERY)


def switch_schedule(function: str, *, enabled: bool) -> Change:
    """Return a function that switches the schedule of a worker on or off, as a wrong deployment would."""

    def switch(stack: EmbeddedStack) -> None:
        events = aws.client("events", stack.emulator_url, stack.aws.access_key)
        for rule in events.list_rules()["Rules"]:
            targets = events.list_targets_by_rule(Rule=rule["Name"])["Targets"]
            if any(target["Arn"].endswith(f":{function}") for target in targets):
                (events.enable_rule if enabled else events.disable_rule)(Name=rule["Name"])
        if enabled:
            stack.aws.invoke_async(function)

    return switch
