"""J3: what the preflight finds in an account. EC2 and Secrets Manager are moto's; moto knows no quota of Lambda."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws

from grantwire_cli import costs
from grantwire_cli.checks import preflight
from grantwire_cli.checks.findings import Level
from grantwire_cli.checks.preflight import Plan, check_before_deploy
from infra.local.deployment.template import functions, load_template
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPLATE = load_template()
DATABASE = {"username": "u", "password": "s3cr3t", "host": "h", "dbname": "d"}


class Quotas:
    """The concurrency of an account."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def get_account_settings(self) -> Any:
        """Return the limits."""
        return {"AccountLimit": {"ConcurrentExecutions": self.limit, "UnreservedConcurrentExecutions": self.limit}}


class Account:
    """An account with a network and the secrets of the guide; a test changes one of them."""

    def __init__(self) -> None:
        self.concurrency = 1000
        self.ec2 = boto3.client("ec2", region_name="us-east-1")
        self.secrets = boto3.client("secretsmanager", region_name="us-east-1")
        self.vpc = self.ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        self.subnets = [self._subnet(zone, number) for number, zone in enumerate(("us-east-1a", "us-east-1b"))]
        group = self.ec2.create_security_group(GroupName="g", Description="d", VpcId=self.vpc)["GroupId"]
        self.endpoint()
        self.parameters = {"SubnetIds": ",".join(self.subnets), "SecurityGroupIds": group}
        self.parameters |= {"ApiConcurrency": "20", "WorkerConcurrency": "2"}
        for name in preflight.REQUIRED_SECRETS:
            self.store(name, DATABASE if "Database" in name else {"url": "tls://n:4222", "password": "s3cr3t"})

    def __call__(self, service: str) -> Any:
        """Return the client of a service."""
        return {"lambda": Quotas(self.concurrency), "ec2": self.ec2, "secretsmanager": self.secrets}[service]

    def _subnet(self, zone: str, number: int) -> str:
        cidr = f"10.0.{number}.0/24"
        return str(self.ec2.create_subnet(VpcId=self.vpc, CidrBlock=cidr, AvailabilityZone=zone)["Subnet"]["SubnetId"])

    def endpoint(self, service: str = "secretsmanager", **options: Any) -> None:
        """Create an interface endpoint."""
        name = f"com.amazonaws.us-east-1.{service}"
        self.ec2.create_vpc_endpoint(VpcId=self.vpc, ServiceName=name, VpcEndpointType="Interface", **options)

    def delete_endpoints(self) -> None:
        """Delete all endpoints."""
        for endpoint in self.ec2.describe_vpc_endpoints()["VpcEndpoints"]:
            self.ec2.delete_vpc_endpoints(VpcEndpointIds=[endpoint["VpcEndpointId"]])

    def store(self, name: str, content: Any) -> None:
        """Create the secret of a parameter."""
        text = content if isinstance(content, str) else json.dumps(content)
        self.parameters[name] = self.secrets.create_secret(Name=f"{name}-{len(text)}", SecretString=text)["ARN"]

    def findings(self, stack: str = "grantwire") -> list[tuple[str, str, str]]:
        """Return what is not in order: level, check and the beginning of the message."""
        found = list(check_before_deploy(self, Plan(stack, self.parameters)))
        assert "s3cr3t" not in json.dumps([one.as_dict() for one in found])
        assert all(one.repair for one in found if one.level is Level.PROBLEM)
        return [(one.level.value, one.check, one.message) for one in found if one.level is not Level.OK]


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """An account in which everything is in order."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with mock_aws():
        yield Account()


def test_account_in_order_has_no_findings(account: Account) -> None:
    """The parameters of the guide in an account with the usual quota."""
    assert account.findings() == []


def test_new_account_cannot_reserve(account: Account) -> None:
    """Its quota can be 10; the example command of the guide reserves nothing, and leaves some to the routes."""
    account.concurrency = 10
    (found,) = account.findings()
    assert found[:2] == ("problem", "concurrency")
    assert "reserves 274 concurrent executions, and the account can reserve 0 of 10" in found[2]
    del account.parameters["ApiConcurrency"], account.parameters["WorkerConcurrency"]
    assert [one[:2] for one in account.findings()] == [("problem", "concurrency"), ("warning", "connections")]
    account.parameters["WorkerMode"] = "economical"
    assert [one[:2] for one in account.findings()] == [("warning", "concurrency"), ("warning", "connections")]
    example = (ROOT / "docs" / "deploy.md").read_text().partition("## First deployment")[2].partition("### ")[0]
    command = example.partition("sam deploy --parameter-overrides")[2].partition("```")[0]
    plan = Plan.parse("grantwire", command.replace("\\\n", " "))
    assert (plan.reserved, plan.used_by_workers) == (0, 7)


def test_long_stack_name_is_a_problem(account: Account) -> None:
    """J4: before CloudFormation has created a part of the stack."""
    assert account.findings("g" * 42) == []
    (found,) = account.findings("g" * 43)
    assert found[:2] == ("problem", "stack name")


def test_subnets_need_a_way_to_secrets_manager(account: Account) -> None:
    """An endpoint, or a NAT gateway in the routes of every subnet; a webhook needs the latter."""
    account.delete_endpoints()
    assert [one[:2] for one in account.findings()] == [("problem", "endpoints")]
    account.parameters["NotificationSender"] = "webhook"
    assert [one[:2] for one in account.findings()] == [("problem", "endpoints")] * 2
    nat = account.ec2.create_nat_gateway(SubnetId=account.subnets[0])["NatGateway"]["NatGatewayId"]
    tables = account.ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [account.vpc]}])["RouteTables"]
    table = tables[0]["RouteTableId"]
    account.ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=nat)
    assert account.findings() == []


def test_functions_must_be_able_to_use_the_endpoint(account: Account) -> None:
    """An endpoint has the default group of the network unless one is given, and that admits only its own members."""
    account.delete_endpoints()
    account.endpoint(PrivateDnsEnabled=False)
    assert [one[:2] for one in account.findings()] == [("problem", "endpoints")]
    account.delete_endpoints()
    group = account.ec2.create_security_group(GroupName="e", Description="d", VpcId=account.vpc)["GroupId"]
    account.endpoint(SecurityGroupIds=[group])
    (found,) = account.findings()
    assert "does not admit the functions on port 443" in found[2]
    own = account.parameters["SecurityGroupIds"]
    for port, admitted, findings in ((80, own, 1), (443, group, 1), (443, own, 0)):
        pairs = [{"GroupId": admitted}]
        rule = {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "UserIdGroupPairs": pairs}
        account.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
        assert len(account.findings()) == findings


def test_credentials_file_needs_its_layer(account: Account) -> None:
    """X5: without the parameter, functions could not sign."""
    file = "-----BEGIN NATS USER JWT-----\ns3cr3t\n"
    account.store("NatsSecretArn", {"url": "tls://n:4222", "credentials": file})
    (found,) = account.findings()
    assert found[2] == "NatsSecretArn has credentials, and functions lack the package that signs with them"
    account.parameters["NatsCredentialsFile"] = "true"
    assert account.findings() == []


def test_subnets_in_one_zone_or_several_networks(account: Account) -> None:
    """Both are accepted by CloudFormation at first."""
    account.parameters["SubnetIds"] = account.subnets[0]
    assert [one[:2] for one in account.findings()] == [("warning", "network")]
    other = account.ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    group = account.ec2.create_security_group(GroupName="o", Description="d", VpcId=other)["GroupId"]
    account.parameters["SecurityGroupIds"] = group
    assert [one[:2] for one in account.findings()] == [("problem", "network")]


def test_secrets_must_exist_and_have_what_functions_need(account: Account) -> None:
    """No value is printed. A login with IAM needs no password."""
    account.store("DatabaseSecretArn", {"username": "u", "password": "s3cr3t"})
    account.store("NatsSecretArn", "tls://u:s3cr3t@n:4222")
    account.parameters["TopologyNatsSecretArn"] += "-gone"
    del account.parameters["ClientsDatabaseSecretArn"]
    assert [one[2] for one in account.findings()] == [
        "DatabaseSecretArn lacks host, dbname",
        "ClientsDatabaseSecretArn is not set",
        "TopologyNatsSecretArn: there is no such secret",
    ]
    account.store("DatabaseSecretArn", {"username": "u", "host": "h", "dbname": "d"})
    assert "DatabaseSecretArn lacks password" in [one[2] for one in account.findings()]
    account.parameters["DatabaseResourceId"] = "db-ABC"
    assert "DatabaseSecretArn lacks password" not in [one[2] for one in account.findings()]


def test_numbers_are_those_of_the_template() -> None:
    """J3: which functions reserve, and which of them open connections."""
    reserving = {
        name: str(one["ReservedConcurrentExecutions"])
        for name, one in functions(TEMPLATE).items()
        if "ReservedConcurrentExecutions" in one
    }
    assert sum("LimitsApiConcurrency" in text for text in reserving.values()) == preflight.API_FUNCTIONS
    assert sum("ReservesWorkers" in text for text in reserving.values()) == preflight.WORKERS
    assert len(costs.FLOW) + len(costs.IDLE) + 1 == preflight.WORKERS  # and the sweep
    assert preflight.API_FUNCTIONS - preflight.API_FUNCTIONS_WITH_DATABASE == 1  # the console
    plan = Plan.parse("grantwire", "ApiConcurrency=20 WorkerConcurrency=2 'Settings=NATS_TLS_CA=a b'")
    assert (plan.connections, plan.reserved, plan.parameters["Settings"]) == (268, 274, "NATS_TLS_CA=a b")


def test_table_of_sizes_is_computed() -> None:
    """J3: the columns that follow from ApiConcurrency."""
    section = (ROOT / "docs" / "deploy.md").read_text().partition("#### Sizes")[2].partition("\n#### ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")]
    sizes = [row for row in rows if row[0][0].isdigit()]
    assert len(sizes) == 4
    for _rate, _memory, api, workers, _instance, connections, concurrency in sizes:
        plan = Plan("g", {"ApiConcurrency": api, "WorkerConcurrency": workers})
        assert connections == str(plan.connections)
        assert concurrency == str(plan.reserved + preflight.UNRESERVED)
