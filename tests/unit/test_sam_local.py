"""What `sam local` is told of the functions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from infra.local.containers.sam_local import SamLocal
from infra.local.deployment.template import function_variables, load_template, logical_names
from infra.local.errors import CommandError
from infra.local.paths import EVENTS

if TYPE_CHECKING:
    from pathlib import Path

GIVEN = {
    "DatabaseUrl": "postgresql://u:127.0.0.1%3A1@127.0.0.1:5432/grantwire",
    "NatsUrl": "nats://127.0.0.1:4222,nats://localhost:4223,tls://nats.example.com:4222",
}


@pytest.fixture
def sam(tmp_path: Path) -> SamLocal:
    """On a build whose template is this checkout's, long functions as SAM writes them."""
    (tmp_path / "template.yaml").write_text(json.dumps(load_template()))
    return SamLocal(tmp_path, tmp_path)


def test_each_function_is_known_by_its_folder() -> None:
    """FN=grant is GrantFunction, and has its event."""
    assert logical_names()["grant"] == "GrantFunction"
    assert logical_names().keys() == {path.stem for path in EVENTS.glob("*.json")}


def test_addresses_of_this_machine_are_rewritten(sam: SamLocal) -> None:
    """Only the host, and only of addresses on the loopback interface."""
    variables = sam.function_environments(GIVEN)["RelayOutboxFunction"]
    assert {name: variables[name] for name in ("DATABASE_URL", "NATS_URL")} == {
        "DATABASE_URL": "postgresql://u:127.0.0.1%3A1@host.docker.internal:5432/grantwire",
        "NATS_URL": "nats://host.docker.internal:4222,nats://host.docker.internal:4223,tls://nats.example.com:4222",
    }


def test_conditions_are_decided_for_the_parameters_that_are_given(sam: SamLocal) -> None:
    """The stage says whether anything may travel in clear; the defaults, which SAM takes, are those of production."""
    names = ("DATABASE_TLS", "NATS_TLS", "PLAINTEXT_ALLOWED")
    local, production = (
        sam.function_environments(GIVEN | more)["RelayOutboxFunction"] for more in ({"Stage": "local"}, {})
    )
    assert [local[name] for name in names] == ["off", "off", "true"]
    assert [production[name] for name in names] == ["verify-full", "verify", "false"]


def test_only_declared_variables_are_set(sam: SamLocal) -> None:
    """SAM would drop others without a word: a function that talks to no NATS gets no address of it."""
    declared = function_variables(load_template())
    variables = sam.function_environments(GIVEN)
    assert variables.keys() == set(logical_names().values())
    assert "NATS_URL" not in variables["GrantFunction"]
    for name, chosen in variables.items():
        assert chosen.keys() <= declared[name].keys()


def test_a_parameter_that_the_template_has_not_is_refused(sam: SamLocal) -> None:
    """Instead of doing nothing."""
    with pytest.raises(CommandError, match="Colour"):
        sam.function_environments({"Colour": "green"})


def test_the_authorizer_is_named_in_a_way_that_sam_understands(sam: SamLocal) -> None:
    """Otherwise `start-api` serves its routes without it; the build's own template stays as it is."""
    before = json.dumps(sam.template)
    api = yaml.safe_load(sam.write_sam_template().read_text())["Resources"]["Api"]["Properties"]
    (authorizer,) = api["Auth"]["Authorizers"].values()
    assert authorizer["FunctionArn"].rpartition(":")[2] == logical_names()["authorize_caller"]
    assert json.dumps(sam.template) == before


def test_the_image_follows_from_the_template(sam: SamLocal) -> None:
    """One constant to change."""
    assert sam.image == "public.ecr.aws/lambda/python:3.11-x86_64"
