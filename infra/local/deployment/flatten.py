"""A build without layers: the contents of the layers are copied into the folder of each function.

For an AWS that accepts layers but does not apply them, such as LocalStack's community image. Neither the committed
template nor SAM's build is changed.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

from infra.local.deployment.conditions import ConditionEvaluator
from infra.local.deployment.template import LAYER_VERSION, load_template, own_properties, write_template
from infra.local.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def flatten(build: Path, target: Path, parameters: Mapping[str, str]) -> None:
    """Write a copy of SAM's build folder that needs no layers, replacing `target`.

    A list of layers may depend on a condition, which the parameters decide.

    Raises CommandError if a layer is not defined in the template, or contains more than Python code.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    template = load_template(build / "template.yaml")
    resources: dict[str, Any] = template["Resources"]
    conditions = ConditionEvaluator(template, parameters)
    shared = conditions.choose(template.get("Globals", {}).get("Function", {}).pop("Layers", []))
    for name, properties in own_properties(template).items():
        layers = (*shared, *conditions.choose(properties.pop("Layers", [])))
        folders = [build / _layer_folder(resources, name, layer) for layer in layers]
        _merge_layers(folders, build / properties["CodeUri"], target / properties["CodeUri"])
    defined = [name for name, resource in resources.items() if resource["Type"] == LAYER_VERSION]
    template["Resources"] = {name: resource for name, resource in resources.items() if name not in defined}
    removed = [{"Ref": layer} for layer in defined]
    outputs = template.get("Outputs", {}).items()
    template["Outputs"] = {name: output for name, output in outputs if output["Value"] not in removed}
    write_template(template, target / "template.yaml")


def _layer_folder(resources: dict[str, Any], function: str, layer: Any) -> str:
    """Return the folder of a layer that the template defines."""
    resource = resources.get(layer.get("Ref", ""), {}) if isinstance(layer, dict) else {}
    if resource.get("Type") != LAYER_VERSION:
        raise CommandError(f"{function} has a layer that the template does not define: {layer}.")
    return str(resource["Properties"]["ContentUri"])


def _merge_layers(layers: list[Path], code: Path, target: Path) -> None:
    """Copy the layers, then the function's code, over each other.

    This gives the same result as Lambda: the function's own files come first, and a later layer hides an earlier one.
    """
    for layer in layers:
        if other := {path.name for path in layer.iterdir()} - {"python"}:
            raise CommandError(f"{layer} contains more than Python code, which cannot be moved: {sorted(other)}.")
        _copy(layer / "python", target)
    _copy(code, target)


def _copy(source: Path, target: Path) -> None:
    """Copy a tree over another one, with hard links where possible: every function gets a copy of the layer."""
    for folder, _, files in os.walk(source):
        target_folder = target / os.path.relpath(folder, source)
        target_folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            (target_folder / file).unlink(missing_ok=True)
            _link(os.path.join(folder, file), target_folder / file)  # noqa: PTH118  # faster, for thousands of files


def _link(source: str, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
