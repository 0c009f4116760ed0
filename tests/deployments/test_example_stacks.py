"""J6: the example stacks are created as far as the emulator knows their resources, with the outputs of each other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from infra.local.deployment import aws
from infra.local.deployment.template import load_template
from infra.local.servers.emulator import EmulatorServer
from infra.local.system.processes import wait_until
from tests.support.paths import ROOT
from tests.support.run import STATE

if TYPE_CHECKING:
    from collections.abc import Iterator

# The emulator has no provisioner for these. They are linted only, and so is what refers to them.
UNKNOWN = {
    "AWS::EC2::EIP",
    "AWS::EC2::Instance",
    "AWS::EC2::NatGateway",
    "AWS::EC2::SecurityGroupIngress",
    "AWS::EC2::Volume",
    "AWS::EC2::VolumeAttachment",
}
UNKNOWN_ATTRIBUTES = {"MasterUserSecret.SecretArn"}
SERVERS = {
    "ServersSecretArn": "arn:aws:secretsmanager:us-east-1:000000000000:secret:nats",
    "ServerUrl": "https://example.com/nats-server.tar.gz",
    "ServerSha256": "0" * 64,
    "Image": "ami-12345678",
}


class Account:
    """An empty account on the emulator."""

    def __init__(self, server: EmulatorServer) -> None:
        self._formation = aws.client("cloudformation", server.url, server.access_key)

    def create(self, name: str, **parameters: str) -> dict[str, str]:
        """Create the known part of an example stack, and return its outputs."""
        self._formation.create_stack(
            StackName=name,
            TemplateBody=json.dumps(known_part(load_template(ROOT / "infra" / "aws" / f"{name}.yaml"))),
            Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
            Capabilities=["CAPABILITY_IAM"],
        )
        assert wait_until(lambda: not self._describe(name)["StackStatus"].endswith("IN_PROGRESS"), 60)
        stack = self._describe(name)
        events = self._formation.describe_stack_events(StackName=name)["StackEvents"]
        failures = [event.get("ResourceStatusReason") for event in events if "FAILED" in event["ResourceStatus"]]
        assert failures == []
        assert stack["StackStatus"] == "CREATE_COMPLETE"
        return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}

    def _describe(self, name: str) -> dict[str, Any]:
        return dict(self._formation.describe_stacks(StackName=name)["Stacks"][0])


def known_part(template: dict[str, Any]) -> dict[str, Any]:
    """Return a template without resources that the emulator does not know, and without what refers to them."""
    template["Parameters"] = {
        name: parameter | ({"Type": "String", "Default": ""} if "SSM" in parameter["Type"] else {})
        for name, parameter in template["Parameters"].items()
    }
    resources = template["Resources"]
    unknown = {name for name, resource in resources.items() if resource["Type"] in UNKNOWN}
    while more := {name for name, one in resources.items() if name not in unknown and _mentions(one, unknown)}:
        unknown |= more
    template["Resources"] = {name: one for name, one in template["Resources"].items() if name not in unknown}
    template["Outputs"] = {name: one for name, one in template["Outputs"].items() if not _mentions(one, unknown)}
    return template


def _mentions(node: Any, names: set[str]) -> bool:
    """Return whether a node refers to one of the resources, or to an attribute that the emulator does not know."""
    if isinstance(node, dict):
        resource, attribute = node.get("Fn::GetAtt") or ("", "")
        if node.get("Ref") in names or resource in names or attribute in UNKNOWN_ATTRIBUTES:
            return True
        return any(_mentions(value, names) for value in node.values())
    return isinstance(node, list) and any(_mentions(item, names) for item in node)


@pytest.fixture
def account() -> Iterator[Account]:
    """An empty account."""
    server = EmulatorServer(STATE / "example-stacks")
    server.start()
    yield Account(server)
    server.destroy()


def test_example_stacks_are_created_with_the_outputs_of_each_other(account: Account) -> None:
    """Network, then database and NATS in it."""
    network = account.create("network")
    assert len(network["SubnetIds"].split(",")) == 3
    shared = {"SubnetIds": network["SubnetIds"]}
    database = account.create("database", **shared, DatabaseSecurityGroupId=network["DatabaseSecurityGroupId"])
    assert {"DatabaseSecretArn", "MigrationDatabaseSecretArn", "ClientsDatabaseSecretArn"} <= database.keys()
    nats = account.create(
        "nats", **shared, **SERVERS, VpcId=network["VpcId"], NatsSecurityGroupId=network["NatsSecurityGroupId"]
    )
    assert nats["EventStreamReplicas"] == "3"
