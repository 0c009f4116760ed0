"""The build without layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from infra.local.deployment.flatten import flatten
from infra.local.errors import CommandError

if TYPE_CHECKING:
    from pathlib import Path

LAYER = {"Type": "AWS::Serverless::LayerVersion", "Properties": {"ContentUri": "Core"}}
FUNCTION = {"Type": "AWS::Serverless::Function", "Properties": {"CodeUri": "F", "Handler": "handler.handler"}}
TEMPLATE: dict[str, Any] = {
    "Globals": {"Function": {"Layers": [{"Ref": "Core"}], "Runtime": "python3.11"}},
    "Resources": {"Core": LAYER, "F": FUNCTION, "Logs": {"Type": "AWS::Logs::LogGroup"}},
    "Outputs": {"Layer": {"Value": {"Ref": "Core"}}, "Function": {"Value": {"Ref": "F"}}},
}


def _build(folder: Path, template: dict[str, Any], files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "template.yaml").write_text(yaml.safe_dump(template))
    return folder


def _tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_function_gets_the_files_of_its_layer(tmp_path: Path) -> None:
    """A file of the function hides the layer's file of the same name. SAM's build is not changed."""
    files = {"F/handler.py": "own", "Core/python/pkg/a.py": "a", "Core/python/handler.py": "hidden"}
    build = _build(tmp_path / "build", TEMPLATE, files)
    before = _tree(build)
    for _ in range(2):  # the second run replaces the result of the first
        flatten(build, tmp_path / "flat", {})
    flattened = _tree(tmp_path / "flat")
    template = yaml.safe_load(flattened.pop("template.yaml"))
    assert flattened == {"F/handler.py": "own", "F/pkg/a.py": "a"}
    assert template == {
        "Globals": {"Function": {"Runtime": "python3.11"}},
        "Resources": {"F": FUNCTION, "Logs": {"Type": "AWS::Logs::LogGroup"}},
        "Outputs": {"Function": {"Value": {"Ref": "F"}}},  # an output of a layer would refer to nothing
    }
    assert _tree(build) == before


def test_later_layer_hides_an_earlier_one(tmp_path: Path) -> None:
    """Lambda unpacks layers over each other: first those of `Globals`, then the function's own."""
    own = {"Type": "AWS::Serverless::LayerVersion", "Properties": {"ContentUri": "Own"}}
    function = {**FUNCTION, "Properties": {**FUNCTION["Properties"], "Layers": [{"Ref": "Own"}]}}  # type: ignore[dict-item]
    template = {**TEMPLATE, "Resources": {"Core": LAYER, "Own": own, "F": function}}
    files = {"F/handler.py": "", "Core/python/a.py": "core", "Core/python/b.py": "core", "Own/python/a.py": "own"}
    flatten(_build(tmp_path / "build", template, files), tmp_path / "flat", {})
    assert _tree(tmp_path / "flat" / "F") == {"handler.py": "", "a.py": "own", "b.py": "core"}


@pytest.mark.parametrize("value", ["true", "false"])
def test_condition_selects_the_list_of_layers(tmp_path: Path, value: str) -> None:
    """The value of a parameter decides, or its default."""
    extra = {"Type": "AWS::Serverless::LayerVersion", "Condition": "Extra", "Properties": {"ContentUri": "Extra"}}
    layers = {"Fn::If": ["Extra", [{"Ref": "Core"}, {"Ref": "Extra"}], [{"Ref": "Core"}]]}
    template = {
        **TEMPLATE,
        "Parameters": {"Wanted": {"Type": "String", "Default": "false"}},
        "Conditions": {"Extra": {"Fn::Equals": [{"Ref": "Wanted"}, "true"]}},
        "Globals": {"Function": {"Layers": layers}},
        "Resources": {"Core": LAYER, "Extra": extra, "F": FUNCTION},
    }
    files = {"F/handler.py": "", "Core/python/a.py": "", "Extra/python/b.py": ""}
    parameters = {"Wanted": value} if value == "true" else {}
    flatten(_build(tmp_path / "build", template, files), tmp_path / "flat", parameters)
    assert set(_tree(tmp_path / "flat" / "F")) == {"handler.py", "a.py"} | ({"b.py"} if value == "true" else set())


@pytest.mark.parametrize(
    ("layer", "files", "message"),
    [
        ("arn:aws:lambda:us-east-1:1:layer:x:1", {}, "a layer that the template does not define"),
        ({"Ref": "Parameter"}, {}, "a layer that the template does not define"),
        ({"Ref": "Core"}, {"Core/bin/tool": ""}, "more than Python code"),
    ],
)
def test_layer_that_cannot_be_merged_is_refused(
    tmp_path: Path, layer: Any, files: dict[str, str], message: str
) -> None:
    """An incomplete function would fail later, with an error that explains less."""
    template = {**TEMPLATE, "Globals": {"Function": {"Layers": [layer]}}}
    build = _build(tmp_path / "build", template, {"F/handler.py": "", "Core/python/a.py": "", **files})
    with pytest.raises(CommandError, match=message):
        flatten(build, tmp_path / "flat", {})
