"""J1: the real LocalStack 4.14.0, as a process, creates what `make up STACK=localstack` deploys there.

It does not run the functions: that needs a download from its maker and Docker. So their code is left out.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import WaiterError

from infra.local.deployment.conditions import ConditionEvaluator
from infra.local.deployment.sam import BUCKET, STACK_NAME, Deployment, Limits
from infra.local.deployment.template import api_routes
from infra.local.errors import CommandError
from tests.support.localstack_template import translate, without_functions, write_build

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.localstack_process import LocalStackProcess

PARAMETERS = {
    "DatabaseUrl": "postgresql://u:p@postgres/grantwire",
    "NatsUrl": "nats://nats:4222",
    "Stage": "local",
    "InboxEnabled": "true",
    "TokenEnvironment": "dev",
    "GatewayAuthenticates": "false",
}
BEFORE_THE_FIRST_FUNCTION = {
    "AWS::ApiGateway::Account",
    "AWS::CloudWatch::Alarm",
    "AWS::IAM::ManagedPolicy",
    "AWS::IAM::Role",
    "AWS::Logs::LogGroup",
}


@pytest.fixture(scope="module")
def deployment(localstack: LocalStackProcess, folder: Path) -> Deployment:
    """The deployment, tried once: it ends at the first function unless LocalStack can run functions."""
    limits = Limits(ignores_layers=True, has_old_sam=True, runs_containers=True)
    made = Deployment(folder / "deployment", localstack, PARAMETERS, limits=limits)
    write_build(made.build)
    with contextlib.suppress(CommandError):
        made.deploy()
    return made


def test_sam_creates_the_change_set_and_all_resources_up_to_the_functions(
    localstack: LocalStackProcess, deployment: Deployment
) -> None:
    """J1: `sam deploy` reaches the first function, and nothing else fails."""
    events = _events(localstack, STACK_NAME)
    assert any(event["ResourceStatus"] == "CREATE_IN_PROGRESS" for event in events), deployment.log.read_text()[-2000:]
    failed = [
        event for event in events if event["ResourceStatus"] == "CREATE_FAILED" and "ResourceStatusReason" in event
    ]
    assert {event["ResourceType"] for event in failed} <= {"AWS::Lambda::Function"}, failed
    created = {event["ResourceType"] for event in events if event["ResourceStatus"] == "CREATE_COMPLETE"}
    assert created >= BEFORE_THE_FIRST_FUNCTION


def test_everything_but_the_functions_is_created(localstack: LocalStackProcess, deployment: Deployment) -> None:
    """J1: the API with all routes, its stage, the schedules, and all alarms of a local stage."""
    translated, errors = translate(deployment.artifacts / "localstack.yaml", deployment.parameters)
    assert translated, errors
    template = without_functions(translated)
    failed, created = _create(localstack, "without-functions", template, deployment)
    assert failed == []
    (stack,) = localstack.client("cloudformation").describe_stacks(StackName="without-functions")["Stacks"]
    assert stack["StackStatus"] == "CREATE_COMPLETE"
    conditions = ConditionEvaluator(template, deployment.parameters)
    expected = {
        name
        for name, resource in template["Resources"].items()
        if "Condition" not in resource or conditions.holds({"Condition": resource["Condition"]})
    }
    assert expected - created == set()
    gateway = localstack.client("apigateway")
    (api,) = gateway.get_rest_apis()["items"]
    resources = gateway.get_resources(restApiId=api["id"], limit=500)["items"]
    routes = {(method, resource["path"]) for resource in resources for method in resource.get("resourceMethods", ())}
    assert set(api_routes()) <= routes
    # docs/local.md says that LocalStack ignores them.
    responses = gateway.get_gateway_responses(restApiId=api["id"])["items"]
    assert all(response["defaultResponse"] for response in responses)


def _create(
    localstack: LocalStackProcess, stack: str, template: dict[str, Any], deployment: Deployment
) -> tuple[list[dict[str, Any]], set[str]]:
    """Create a stack; return the events of failures, and the names of the created resources."""
    localstack.client("s3").put_object(Bucket=BUCKET, Key=stack, Body=json.dumps(template).encode())
    client = localstack.client("cloudformation")
    client.create_stack(
        StackName=stack,
        TemplateURL=f"{localstack.url}/{BUCKET}/{stack}",
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in deployment.parameters.items()],
        Capabilities=["CAPABILITY_IAM"],
    )
    with contextlib.suppress(WaiterError):  # the events say why
        client.get_waiter("stack_create_complete").wait(StackName=stack, WaiterConfig={"Delay": 1, "MaxAttempts": 300})
    events = _events(localstack, stack)
    failed = [event for event in events if event["ResourceStatus"].endswith("FAILED")]
    return failed, {event["LogicalResourceId"] for event in events if event["ResourceStatus"] == "CREATE_COMPLETE"}


def _events(localstack: LocalStackProcess, stack: str) -> list[dict[str, Any]]:
    pages = localstack.client("cloudformation").get_paginator("describe_stack_events").paginate(StackName=stack)
    return [event for page in pages for event in page["StackEvents"]]
