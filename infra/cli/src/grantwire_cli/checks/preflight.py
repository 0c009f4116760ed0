"""Checks of an account before the first deployment: quotas, network and secrets (J3). They change nothing."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire_cli.checks.findings import Finding, ok, problem, warning
from grantwire_cli.cloudformation import read_secret
from grantwire_cli.costs import FLOW, MODES
from grantwire_cli.wording import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    AwsClient = Callable[[str], Any]

# Of the template; tests compare them. Lambda allows 64 characters for the name of a function, which is that of the
# stack and a suffix. CloudFormation has no rule for a length, so a longer name would fail halfway.
MAX_STACK_NAME = 42
API_FUNCTIONS = 13  # functions of routes and the authorizer, which reserve ApiConcurrency
API_FUNCTIONS_WITH_DATABASE = 12  # all of them but the console
WORKERS = 7  # functions that reserve WorkerConcurrency
# Twice those of the workers that overlap with their next invocation, the sweep, and a heartbeat of each: see
# docs/runbook-reference.md.
WORKER_CONNECTIONS = 2 * 10 + 1 + WORKERS
# Lambda keeps so much of the account's concurrency for functions without a reservation.
UNRESERVED = 100
HTTPS = 443
FREE_ADDRESSES = 20
SECRETS: Mapping[str, tuple[str, ...]] = {
    "DatabaseSecretArn": ("username", "password", "host", "dbname"),
    "MigrationDatabaseSecretArn": ("username", "password", "host", "dbname"),
    "ClientsDatabaseSecretArn": ("username", "password", "host", "dbname"),
    "NatsSecretArn": ("url",),
    "TopologyNatsSecretArn": ("url",),
    "WebhookSecretArn": ("url", "keys"),
}
REQUIRED_SECRETS = tuple(name for name in SECRETS if name != "WebhookSecretArn")


@dataclass(frozen=True)
class Plan:
    """The parameters of a deployment that the checks use."""

    stack_name: str
    parameters: Mapping[str, str]

    @classmethod
    def parse(cls, stack_name: str, overrides: str) -> Plan:
        """Read the text that `sam deploy --parameter-overrides` gets."""
        pairs = (word.partition("=") for word in shlex.split(overrides))
        return cls(stack_name, {name: value for name, _, value in pairs})

    @property
    def api_concurrency(self) -> int:
        """The reservation of each function of a route; 0 if there is none."""
        return self._number("ApiConcurrency")

    @property
    def reserved(self) -> int:
        """The concurrency that the stack reserves."""
        return API_FUNCTIONS * self.api_concurrency + WORKERS * self._number("WorkerConcurrency")

    @property
    def used_by_workers(self) -> int:
        """The concurrency that workers use: those that run all the time overlap with their next invocation."""
        always_on, _ = MODES
        return WORKERS + (len(FLOW) if self.parameters.get("WorkerMode", always_on) == always_on else 0)

    @property
    def connections(self) -> int:
        """The connections that the stack can open, if the functions of routes have a reservation."""
        return API_FUNCTIONS_WITH_DATABASE * self.api_concurrency + WORKER_CONNECTIONS

    def names(self, parameter: str) -> list[str]:
        """Return the items of a list."""
        return [name for name in self.parameters.get(parameter, "").split(",") if name]

    def _number(self, parameter: str) -> int:
        text = self.parameters.get(parameter, "0")
        return int(text) if text.isdecimal() else 0


def check_before_deploy(aws: AwsClient, plan: Plan) -> Iterator[Finding]:
    """Yield the findings about an account; `aws` returns the client of a service.

    Errors of AWS are raised as boto3 raises them, except those of a single secret.
    """
    yield _check_stack_name(plan)
    yield from _check_concurrency(aws("lambda"), plan)
    yield from _check_network(aws("ec2"), plan)
    yield from _check_secrets(aws("secretsmanager"), plan)


def _check_stack_name(plan: Plan) -> Finding:
    length = len(plan.stack_name)
    if length > MAX_STACK_NAME:
        message = f"the stack name has {length} characters, and the names of its functions would be too long for Lambda"
        return problem("stack name", message, f"choose a name of at most {MAX_STACK_NAME} characters")
    return ok("stack name", f"{plan.stack_name} has {length} of at most {MAX_STACK_NAME} characters")


def _check_concurrency(client: Any, plan: Plan) -> Iterator[Finding]:
    settings = client.get_account_settings()["AccountLimit"]
    limit, unreserved = settings["ConcurrentExecutions"], settings["UnreservedConcurrentExecutions"]
    quota = "ask for a higher quota of Lambda, Concurrent executions (L-B99A9384), or set ApiConcurrency=0"
    if plan.reserved and plan.reserved > unreserved - UNRESERVED:
        message = (
            f"the stack reserves {plan.reserved} concurrent executions, and the account can reserve"
            f" {max(0, unreserved - UNRESERVED)} of {limit}: Lambda keeps {UNRESERVED} for other functions"
        )
        yield problem("concurrency", message, quota + " and WorkerConcurrency=0")
        return
    workers = plan.used_by_workers
    if not plan.reserved and unreserved <= workers:
        message = f"the account has {unreserved} concurrent executions, and the workers alone use up to {workers}"
        yield problem("concurrency", message, "set WorkerMode=economical, and ask for a higher quota (L-B99A9384)")
    elif not plan.reserved and unreserved < 2 * workers:
        message = (
            f"the account has {unreserved} concurrent executions, of which the workers use up to {workers}:"
            " enough to try the stack, not for traffic"
        )
        yield warning("concurrency", message, quota)
    else:
        yield ok("concurrency", f"the stack reserves {plan.reserved} of {unreserved} unreserved concurrent executions")
    if not plan.api_concurrency:
        message = f"without ApiConcurrency a burst can open {unreserved} connections to PostgreSQL"
        yield warning("connections", message, "set ApiConcurrency and WorkerConcurrency=2 in production")
    else:
        yield ok(
            "connections", f"the stack opens at most {plan.connections} connections; max_connections must exceed it"
        )


def _check_network(client: Any, plan: Plan) -> Iterator[Finding]:
    subnet_ids, group_ids = plan.names("SubnetIds"), plan.names("SecurityGroupIds")
    if not subnet_ids:
        yield warning("network", "without SubnetIds the functions run outside your network", "set SubnetIds")
        return
    subnets = client.describe_subnets(SubnetIds=subnet_ids)["Subnets"]
    vpcs = {subnet["VpcId"] for subnet in subnets}
    groups = client.describe_security_groups(GroupIds=group_ids)["SecurityGroups"] if group_ids else []
    zones = {subnet["AvailabilityZone"] for subnet in subnets}
    if not groups:
        yield problem("network", "SecurityGroupIds is empty, and functions in subnets need one", "set SecurityGroupIds")
    if len(vpcs | {group["VpcId"] for group in groups}) > 1:
        yield problem("network", "subnets and security groups are in several VPCs", "choose those of one VPC")
        return
    if len(zones) == 1:
        yield warning(
            "network", f"all subnets are in {next(iter(zones))}, so its failure stops the API", "add another zone"
        )
    if few := [one["SubnetId"] for one in subnets if one["AvailableIpAddressCount"] < FREE_ADDRESSES]:
        message = f"few addresses are free in {', '.join(few)}: the network interfaces of functions need some"
        yield warning("network", message, "use larger subnets")
    yield ok("network", f"{count_of(len(subnets), 'subnet')} in {count_of(len(zones), 'zone')}")
    yield from _check_way_out(client, plan, vpcs.pop(), subnet_ids)


def _check_way_out(client: Any, plan: Plan, vpc: str, subnet_ids: list[str]) -> Iterator[Finding]:
    """Check that functions in the subnets reach Secrets Manager, and SNS or a webhook if they send notifications."""
    in_vpc = [{"Name": "vpc-id", "Values": [vpc]}]
    found = client.describe_vpc_endpoints(Filters=in_vpc)["VpcEndpoints"]
    endpoints = [one for one in found if one["State"].lower() in {"available", "pending"}]
    routed = _subnets_with_nat(client.describe_route_tables(Filters=in_vpc)["RouteTables"], subnet_ids)
    sender = plan.parameters.get("NotificationSender", "log")
    for service in ["secretsmanager", *(["sns"] if sender == "sns" else [])]:
        own = [one for one in endpoints if one["ServiceName"].endswith(f".{service}")]
        if own:
            yield _check_endpoint(client, plan, service, own[0])
        elif routed:
            yield ok("endpoints", f"{service} is reachable through a NAT gateway")
        else:
            message = f"the functions cannot reach {service}: no endpoint for it, and a subnet without a NAT gateway"
            yield problem("endpoints", message, f"create an interface endpoint for {service} with private DNS")
    if sender == "webhook" and not routed:
        yield problem("endpoints", "a webhook needs a way to the internet", "add a NAT gateway to the subnets' routes")


def _check_endpoint(client: Any, plan: Plan, service: str, endpoint: Any) -> Finding:
    """Check that the functions use an endpoint, and may."""
    if not endpoint.get("PrivateDnsEnabled", True):
        message = f"the endpoint for {service} has no private DNS, so the functions do not use it"
        return problem("endpoints", message, "enable its private DNS names")
    ids = [group["GroupId"] for group in endpoint.get("Groups", [])]
    groups = client.describe_security_groups(GroupIds=ids)["SecurityGroups"] if ids else []
    functions = set(plan.names("SecurityGroupIds"))
    if groups and not any(_admits(rule, functions) for group in groups for rule in group["IpPermissions"]):
        message = f"the security group of the endpoint for {service} does not admit the functions on port {HTTPS}"
        return problem("endpoints", message, f"allow TCP {HTTPS} from SecurityGroupIds in {', '.join(ids)}")
    return ok("endpoints", f"the network has an endpoint for {service}")


def _admits(rule: Any, groups: set[str]) -> bool:
    """Return whether a rule admits HTTPS from one of the groups, or from addresses, which are not compared."""
    if rule["IpProtocol"] not in {"tcp", "-1"} or not rule.get("FromPort", HTTPS) <= HTTPS <= rule.get("ToPort", HTTPS):
        return False
    addresses = [rule.get(name) for name in ("IpRanges", "Ipv6Ranges", "PrefixListIds")]
    return any(addresses) or any(pair.get("GroupId") in groups for pair in rule.get("UserIdGroupPairs", []))


def _subnets_with_nat(tables: list[Any], subnet_ids: list[str]) -> bool:
    """Return whether each subnet has a default route to a NAT gateway; without a table it has the main one."""
    table_of: dict[str, Any] = {}
    main: Any = {"Routes": []}
    for table in tables:
        for association in table["Associations"]:
            if association.get("Main"):
                main = table
            if "SubnetId" in association:
                table_of[association["SubnetId"]] = table
    return all(
        any(route.get("DestinationCidrBlock") == "0.0.0.0/0" and "NatGatewayId" in route for route in table["Routes"])
        for table in (table_of.get(subnet, main) for subnet in subnet_ids)
    )


def _check_secrets(client: Any, plan: Plan) -> Iterator[Finding]:
    for name, keys in SECRETS.items():
        arn = plan.parameters.get(name, "")
        if not arn:
            if name in REQUIRED_SECRETS:
                yield problem("secrets", f"{name} is not set", "see docs/deploy.md#first-deployment")
            continue
        text, code = read_secret(client, arn)
        if code == "ResourceNotFoundException":
            yield problem("secrets", f"{name}: there is no such secret", f"create it, or correct {name}")
            continue
        if code:
            yield warning("secrets", f"{name}: you may not read it ({code}), so its content is unknown")
            continue
        passwordless = "password" in keys and bool(plan.parameters.get("DatabaseResourceId"))
        yield _check_content(name, text, [key for key in keys if not (passwordless and key == "password")])
        if "BEGIN NATS USER JWT" in text and plan.parameters.get("NatsCredentialsFile") != "true":
            message = f"{name} has credentials, and functions lack the package that signs with them"
            yield problem("secrets", message, "set NatsCredentialsFile=true")


def _check_content(name: str, text: str, keys: list[str]) -> Finding:
    """Compare the keys of a secret with those that the functions need. A URL as text is allowed. No value is shown."""
    if "://" in text and not text.lstrip().startswith("{"):
        return ok("secrets", f"{name} is a URL")
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    missing = [key for key in keys if not isinstance(content, dict) or not content.get(key)]
    if missing:
        return problem("secrets", f"{name} lacks {', '.join(missing)}", "see docs/deploy.md#first-deployment")
    return ok("secrets", f"{name} has {', '.join(keys)}")
