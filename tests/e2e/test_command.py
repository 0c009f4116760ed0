"""T3: the grantwire command against the deployed stack, as a person at a terminal uses it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from grantwire_cli.checks.findings import Level
from infra.local.commands.state import read_state
from infra.local.deployment.sam import STACK_NAME
from infra.local.doctor.deployment import check_local_deployment
from tests.e2e.aws import client

if TYPE_CHECKING:
    from infra.local.stack.embedded import EmbeddedStack
    from tests.e2e.command import Grantwire


def test_grant_replay_list_and_revoke(grantwire: Grantwire) -> None:
    """T3: a repeated grant with the same key is replayed, and the list shows the change."""
    user, key = f"u_{uuid.uuid4()}", str(uuid.uuid4())
    grant = ("entitlements", "grant", user, "item/1", "--reason", "purchase", "--key", key)
    code, granted = grantwire(*grant)
    assert (code, granted["status"], granted["version"], granted["replayed"]) == (0, "ACTIVE", 1, False)
    assert grantwire(*grant) == (0, granted | {"replayed": True})
    code, refused = grantwire(*grant[:-1], str(uuid.uuid4()))
    assert (code, refused["error"]["code"]) == (1, "ENTITLEMENT_STATE_CONFLICT")
    code, revoked = grantwire("entitlements", "revoke", user, "item/1", "--reason", "refund", "--yes")
    assert (code, revoked["status"], revoked["version"]) == (0, "REVOKED", 2)
    code, listed = grantwire("entitlements", "list", user)
    assert [item["status"] for item in listed["entitlements"]] == ["REVOKED"]


def test_wrong_token_and_wrong_address(grantwire: Grantwire) -> None:
    """T3: exit code 4 for a token that is refused, 3 for an installation that does not respond."""
    assert grantwire("entitlements", "list", "u_1", GRANTWIRE_TOKEN=f"gw_dev_{'0' * 12}_{'x' * 43}")[0] == 4
    assert grantwire("entitlements", "list", "u_1", "--timeout", "0", GRANTWIRE_API="http://127.0.0.1:9")[0] == 3


def test_status_of_the_local_stack(stack: EmbeddedStack) -> None:
    """T3: what `status` shows even without the operations API: servers, API and backlog."""
    state = read_state(stack)
    assert state["healthy"]
    assert state["api_url"] == stack.api_url
    assert [server["alive"] for server in state["servers"]] == [True, True, True]
    assert set(state["backlog"]["dead_letters"]) == {"outbox", "notification", "nats"}


def test_doctor_of_a_stack_by_its_name(grantwire: Grantwire, stack: EmbeddedStack) -> None:
    """T4: outputs, functions and schedules through boto3, with the user's own AWS configuration.

    The output ApiUrl is an address on AWS, which is not reachable here.
    """
    aws = {
        "AWS_ENDPOINT_URL": stack.emulator_url,
        "AWS_ACCESS_KEY_ID": stack.aws.access_key,
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    options = ("--stack-name", STACK_NAME, "--region", "us-east-1", "--timeout", "0")
    code, report = grantwire("doctor", *options, **aws)
    levels = {finding["check"]: finding["level"] for finding in report["findings"]}
    assert (code, levels) == (1, {"deployment": "ok", "functions": "ok", "schedules": "ok", "API": "problem"})
    code, refused = grantwire("doctor", "--stack-name", "unknown", *options[2:], **aws)
    assert code == 1
    assert "does not exist" in refused["findings"][0]["message"]
    code, failed = grantwire("status", "--stack-name", "unknown", *options[2:], **aws)
    assert (code, failed["error"]["hint"]) == (1, "Check the stack's name, --region and AWS_PROFILE.")


def test_doctor_finds_a_disabled_schedule(stack: EmbeddedStack) -> None:
    """T4: the deployed stack has no problems until a schedule is disabled."""

    def problems() -> list[str]:
        return [finding.message for finding in check_local_deployment(stack) if finding.level is Level.PROBLEM]

    assert problems() == []
    events = client(stack, "events")
    name = next(rule["Name"] for rule in events.list_rules()["Rules"] if "Sweep" in rule["Name"])
    events.disable_rule(Name=name)
    try:
        assert problems() == [f"the schedule {name} is disabled, so its worker does not run"]
    finally:
        events.enable_rule(Name=name)
