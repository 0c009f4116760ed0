"""A build without layers."""

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
}


def _build(folder: Path, template: dict[str, Any], files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "template.yaml").write_text(yaml.safe_dump(template))
    return folder


def _tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_function_gets_what_its_layer_has(tmp_path: Path) -> None:
    """And keeps what it has itself, also where both have a file of the same name; the build stays as it was."""
    files = {"F/handler.py": "own", "Core/python/pkg/a.py": "a", "Core/python/handler.py": "hidden"}
    build = _build(tmp_path / "build", TEMPLATE, files)
    before = _tree(build)
    for _ in range(2):  # the second time over what the first one left
        flatten(build, tmp_path / "flat")
    made = _tree(tmp_path / "flat")
    template = yaml.safe_load(made.pop("template.yaml"))
    assert made == {"F/handler.py": "own", "F/pkg/a.py": "a"}
    assert template == {
        "Globals": {"Function": {"Runtime": "python3.11"}},
        "Resources": {"F": FUNCTION, "Logs": {"Type": "AWS::Logs::LogGroup"}},
    }
    assert _tree(build) == before


def test_a_later_layer_hides_an_earlier_one(tmp_path: Path) -> None:
    """As on Lambda, where they are unpacked one over the other: first those of all functions, then its own."""
    own = {"Type": "AWS::Serverless::LayerVersion", "Properties": {"ContentUri": "Own"}}
    function = {**FUNCTION, "Properties": {**FUNCTION["Properties"], "Layers": [{"Ref": "Own"}]}}  # type: ignore[dict-item]
    template = {**TEMPLATE, "Resources": {"Core": LAYER, "Own": own, "F": function}}
    files = {"F/handler.py": "", "Core/python/a.py": "core", "Core/python/b.py": "core", "Own/python/a.py": "own"}
    flatten(_build(tmp_path / "build", template, files), tmp_path / "flat")
    assert _tree(tmp_path / "flat" / "F") == {"handler.py": "", "a.py": "own", "b.py": "core"}


@pytest.mark.parametrize(
    ("layer", "files", "message"),
    [
        ("arn:aws:lambda:us-east-1:1:layer:x:1", {}, "a layer that the template does not define"),
        ({"Ref": "Parameter"}, {}, "a layer that the template does not define"),
        ({"Ref": "Core"}, {"Core/bin/tool": ""}, "more than Python code"),
    ],
)
def test_what_cannot_be_laid_in_is_refused(tmp_path: Path, layer: Any, files: dict[str, str], message: str) -> None:
    """Half a function would only fail later, and say less."""
    template = {**TEMPLATE, "Globals": {"Function": {"Layers": [layer]}}}
    build = _build(tmp_path / "build", template, {"F/handler.py": "", "Core/python/a.py": "", **files})
    with pytest.raises(CommandError, match=message):
        flatten(build, tmp_path / "flat")
