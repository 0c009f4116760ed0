"""The template as plain data: CloudFormation's short functions become the long ones."""

from __future__ import annotations

from typing import Any

import yaml

from tests.support.paths import ROOT


class _Loader(yaml.SafeLoader):
    """YAML that knows `!Ref`, `!Sub`, `!If` and the others."""


def _long_form(loader: yaml.SafeLoader, name: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)  # type: ignore[arg-type]  # the one kind left
    if name == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {name if name in {"Ref", "Condition"} else f"Fn::{name}": value}


_Loader.add_multi_constructor("!", _long_form)


def load_template() -> dict[str, Any]:
    """Read template.yaml, with `!Ref X` as `{"Ref": "X"}` and so on."""
    loaded: dict[str, Any] = yaml.load((ROOT / "template.yaml").read_text(), _Loader)  # noqa: S506 - a SafeLoader
    return loaded
