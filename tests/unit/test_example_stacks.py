"""J6: parameters and outputs of the example stacks fit the template and each other; the guide removes every secret."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from infra.local.commands.check import CHECKS
from infra.local.deployment.template import load_template
from tests.support.paths import ROOT

EXAMPLES = ROOT / "infra" / "aws"
STACKS: dict[str, dict[str, Any]] = {path.stem: load_template(path) for path in sorted(EXAMPLES.glob("*.yaml"))}
TEMPLATE = load_template()
GUIDE = (ROOT / "docs" / "deploy.md").read_text()
# Outputs for a person, not for a parameter.
FOR_PERSONS = {"Host", "AdministratorSecretArn", "NatsUrls"}


def test_example_stacks_are_linted() -> None:
    """By the check of the template."""
    assert {str(EXAMPLES.relative_to(ROOT) / f"{name}.yaml") for name in STACKS} <= set(CHECKS["template"])


def test_every_output_is_a_parameter_of_another_stack() -> None:
    """An output has the name of the parameter that it is for."""
    outputs = {name for stack in STACKS.values() for name in stack["Outputs"]} - FOR_PERSONS
    parameters = TEMPLATE["Parameters"].keys() | {name for stack in STACKS.values() for name in stack["Parameters"]}
    assert outputs <= parameters
    assert {"SubnetIds", "SecurityGroupIds", "DatabaseSecretArn", "EventStreamReplicas"} <= outputs
    for name in outputs & TEMPLATE["Parameters"].keys():
        pattern = TEMPLATE["Parameters"][name].get("AllowedPattern")
        example = {"DatabaseResourceId": "db-ABCDEF", "EventStreamReplicas": "3"}.get(name, "arn:aws:x")
        assert pattern is None or re.fullmatch(pattern, example)


def test_required_parameters_have_an_output_or_are_in_the_guide() -> None:
    """A parameter without a default that nobody explains could not be set."""
    outputs = {name for stack in STACKS.values() for name in stack["Outputs"]}
    for stack in STACKS.values():
        required = {name for name, one in stack["Parameters"].items() if "Default" not in one}
        assert not {name for name in required - outputs if f"`{name}`" not in GUIDE and name not in GUIDE}


def test_samconfig_has_every_example_stack() -> None:
    """`sam deploy --config-env network` deploys one with its name and its template."""
    configuration = tomllib.loads((ROOT / "samconfig.toml").read_text())
    for name in STACKS:
        deploy = configuration[name]["deploy"]["parameters"]
        assert deploy["template_file"] == f"infra/aws/{name}.yaml"
        assert configuration[name]["global"]["parameters"]["stack_name"] == f"grantwire-{name}"
        has_roles = any(one["Type"] == "AWS::IAM::Role" for one in STACKS[name]["Resources"].values())
        assert ("capabilities" in deploy) == has_roles


def test_removal_lists_every_secret_of_the_guide() -> None:
    """A secret that stays costs money, and is a credential that nobody watches."""
    created = set(re.findall(r"create-secret --name grantwire/([\w-]+)|with the name `grantwire/([\w-]+)`", GUIDE))
    created = {name for names in created for name in names if name}
    (removed,) = re.findall(r"^for secret in (.*); do", GUIDE, re.MULTILINE)
    assert set(removed.split()) == created | {"webhook"}
    assert "nats-servers" in created


def test_guide_says_that_the_examples_were_not_run_on_aws() -> None:
    """Everyone must know before they rely on them."""
    section = GUIDE.partition("### Example stacks")[2].partition("\n## ")[0]
    assert "have not been run on AWS" in " ".join(section.split())


def test_domain_needs_a_certificate_and_is_optional() -> None:
    """A name without a certificate would fail after minutes."""
    resources = TEMPLATE["Resources"]
    assert {resources[name]["Condition"] for name in ("ApiDomain", "ApiDomainMapping")} == {"HasDomain"}
    pattern = TEMPLATE["Parameters"]["DomainName"]["AllowedPattern"]
    assert [bool(re.fullmatch(pattern, name)) for name in ("", "a.example.com", "example", "-a.com", "a.com/")] == [
        *(True, True),
        *(False, False, False),
    ]
