"""A build without layers: what the functions' layers hold is laid into each function's own folder.

For an AWS that accepts layers and does not apply them, as LocalStack's community image does. The committed template
stays as it is; what SAM built is read, never changed.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

from infra.local.deployment.template import LAYER_VERSION, load_template, own_properties, write_template
from infra.local.errors import CommandError

if TYPE_CHECKING:
    from pathlib import Path


def flatten(build: Path, target: Path) -> None:
    """Make from SAM's build folder another one that needs no layers; of one that is there, nothing is left."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    template = load_template(build / "template.yaml")
    resources: dict[str, Any] = template["Resources"]
    shared = template.get("Globals", {}).get("Function", {}).pop("Layers", [])
    for name, properties in own_properties(template).items():
        folders = [build / _content(resources, name, layer) for layer in (*shared, *properties.pop("Layers", []))]
        _lay(folders, build / properties["CodeUri"], target / properties["CodeUri"])
    template["Resources"] = {name: one for name, one in resources.items() if one["Type"] != LAYER_VERSION}
    write_template(template, target / "template.yaml")


def _content(resources: dict[str, Any], function: str, layer: Any) -> str:
    """The folder of a layer that this template makes; what another one holds is not here to be laid in."""
    found = resources.get(layer.get("Ref", ""), {}) if isinstance(layer, dict) else {}
    if found.get("Type") != LAYER_VERSION:
        raise CommandError(f"{function} has a layer that the template does not make: {layer}.")
    return str(found["Properties"]["ContentUri"])


def _lay(layers: list[Path], code: Path, target: Path) -> None:
    """Python looks into a layer's `python` folder after the function's own: a later layer hides an earlier one."""
    for layer in layers:
        if other := {path.name for path in layer.iterdir()} - {"python"}:
            raise CommandError(f"{layer} holds more than Python code, which cannot be moved: {sorted(other)}.")
        _copy(layer / "python", target)
    _copy(code, target)


def _copy(source: Path, target: Path) -> None:
    """Copy a tree over another one, by links where the file system has them: thirteen copies of a layer are many."""
    for folder, _, files in os.walk(source):
        here = target / os.path.relpath(folder, source)
        here.mkdir(parents=True, exist_ok=True)
        for file in files:
            (here / file).unlink(missing_ok=True)
            _link(os.path.join(folder, file), here / file)  # noqa: PTH118  # thousands of files


def _link(source: str, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
