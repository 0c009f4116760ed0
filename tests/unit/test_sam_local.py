"""The template and the variables that `sam local` gets."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import yaml

from infra.local.containers.sam_local import SamLocal, available_target
from infra.local.deployment.target import Target, own_target
from infra.local.deployment.template import function_variables, load_template, logical_names
from infra.local.errors import CommandError
from infra.local.paths import EVENTS

if TYPE_CHECKING:
    from pathlib import Path

PARAMETERS = {
    "DatabaseUrl": "postgresql://u:127.0.0.1%3A1@127.0.0.1:5432/grantwire",
    "NatsUrl": "nats://127.0.0.1:4222,nats://localhost:4223,tls://nats.example.com:4222",
}


@pytest.fixture
def sam(tmp_path: Path) -> SamLocal:
    """`sam local` for a build with this checkout's template in long form, as SAM writes it."""
    (tmp_path / "template.yaml").write_text(json.dumps(load_template()))
    return SamLocal(tmp_path, tmp_path, Target("python3.13", "arm64"))


def test_each_function_is_named_by_its_folder_and_has_an_event_file() -> None:
    """FN=grant means GrantFunction."""
    assert logical_names()["grant"] == "GrantFunction"
    assert logical_names().keys() == {path.stem for path in EVENTS.glob("*.json")}


def test_loopback_addresses_are_rewritten_for_containers(sam: SamLocal) -> None:
    """Only the host is replaced, and only in addresses on the loopback interface."""
    variables = sam.function_environments(PARAMETERS)["RelayOutboxFunction"]
    assert {name: variables[name] for name in ("DATABASE_URL", "NATS_URL")} == {
        "DATABASE_URL": "postgresql://u:127.0.0.1%3A1@host.docker.internal:5432/grantwire",
        "NATS_URL": "nats://host.docker.internal:4222,nats://host.docker.internal:4223,tls://nats.example.com:4222",
    }


def test_conditions_are_evaluated_for_the_given_parameters(sam: SamLocal) -> None:
    """The stage decides whether plaintext is allowed. SAM would use the defaults, which are those of production."""
    names = ("DATABASE_TLS", "NATS_TLS", "PLAINTEXT_ALLOWED")
    local, production = (
        sam.function_environments(PARAMETERS | more)["RelayOutboxFunction"] for more in ({"Stage": "local"}, {})
    )
    assert [local[name] for name in names] == ["off", "off", "true"]
    assert [production[name] for name in names] == ["verify-full", "verify", "false"]


def test_only_declared_variables_are_set(sam: SamLocal) -> None:
    """SAM ignores other variables silently. A function that does not use NATS gets no NATS address."""
    declared = function_variables(load_template())
    variables = sam.function_environments(PARAMETERS)
    assert variables.keys() == set(logical_names().values())
    assert "NATS_URL" not in variables["GrantFunction"]
    for name, environment in variables.items():
        assert environment.keys() <= declared[name].keys()


def test_unknown_template_parameter_is_refused(sam: SamLocal) -> None:
    """It is not ignored."""
    with pytest.raises(CommandError, match="Colour"):
        sam.function_environments({"Colour": "green"})


def test_authorizer_is_referenced_in_a_form_that_sam_resolves(sam: SamLocal) -> None:
    """Otherwise `start-api` would serve routes without the authorizer. The built template is not changed."""
    before = json.dumps(sam.template)
    api = yaml.safe_load(sam.write_sam_template().read_text())["Resources"]["Api"]["Properties"]
    (authorizer,) = api["Auth"]["Authorizers"].values()
    assert authorizer["FunctionArn"].rpartition(":")[2] == logical_names()["authorize_caller"]
    assert json.dumps(sam.template) == before


class Images:
    """An engine that has these images."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def has_image(self, name: str) -> bool:
        """Return whether an image is present."""
        return name in self._names


def test_image_is_that_of_the_target(sam: SamLocal) -> None:
    """X6: the runtime and the architecture that the functions are built for."""
    assert sam.image == "public.ecr.aws/lambda/python:3.13-arm64"


def test_target_is_one_that_can_be_built_and_whose_image_is_present(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X6: this Python's own; another one of the PATH if only its image is present; otherwise the own is pulled."""
    own = own_target()
    other = replace(own, runtime="python3.12" if own.runtime != "python3.12" else "python3.13")
    absent = replace(own, runtime="python3.14" if own.runtime != "python3.14" else "python3.13")
    python = tmp_path / other.runtime
    python.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    def selected(*images: str) -> Target:
        return available_target(Images(*images))  # type: ignore[arg-type]

    assert selected(other.image, own.image) == own
    assert selected(other.image, absent.image) == other
    assert selected(absent.image) == own
