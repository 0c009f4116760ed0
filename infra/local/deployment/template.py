"""Templates as plain data: template.yaml, and the template that SAM builds from it.

CloudFormation's short functions are read in their long form: `!Ref X` as `{"Ref": "X"}`. Anchors, aliases and merge
keys are resolved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from infra.local.errors import CommandError
from infra.local.paths import TEMPLATE

FUNCTION = "AWS::Serverless::Function"
LAYER_VERSION = "AWS::Serverless::LayerVersion"
_UNPREFIXED = {"Ref", "Condition"}


class _Loader(yaml.SafeLoader):
    """YAML with CloudFormation's tags."""


def _long_form(loader: yaml.SafeLoader, name: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)  # type: ignore[arg-type]  # a MappingNode
    if name == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {name if name in _UNPREFIXED else f"Fn::{name}": value}


_Loader.add_multi_constructor("!", _long_form)


def load_template(path: Path = TEMPLATE) -> dict[str, Any]:
    """Return a template as nested dictionaries and lists, none of them shared, so that each can be changed alone.

    Raises CommandError if the file cannot be read or is not a template.
    """
    try:
        loaded = yaml.load(path.read_text(), _Loader)  # noqa: S506  # a SafeLoader
    except (OSError, yaml.YAMLError) as error:
        raise CommandError(f"Could not read {path}: {error}") from error
    if not isinstance(loaded, dict):
        raise CommandError(f"{path} is not a template.")
    unshared: dict[str, Any] = _unshared(loaded)
    return unshared


def write_template(template: dict[str, Any], path: Path) -> None:
    """Write a template as SAM reads it."""
    path.write_text(yaml.safe_dump(template, sort_keys=False))


def declared_parameters() -> dict[str, str]:
    """Return the parameters of template.yaml with their defaults; CloudFormation rejects any others."""
    return parameter_defaults(load_template())


def parameter_defaults(template: dict[str, Any]) -> dict[str, str]:
    """Return the parameters of a template with their defaults as text."""
    parameters = template.get("Parameters", {})
    return {name: str(parameter.get("Default", "")) for name, parameter in parameters.items()}


def own_properties(template: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each function's own properties, without `Globals`. They are part of the template, not copies."""
    resources = template["Resources"]
    return {name: resource["Properties"] for name, resource in resources.items() if resource["Type"] == FUNCTION}


def functions(template: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each function's properties with `Globals` merged in, as SAM deploys them."""
    common = template.get("Globals", {}).get("Function", {})
    return {name: _merged(common, properties) for name, properties in own_properties(template).items()}


def function_variables(template: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each function's environment variables, including those of `Globals`."""
    return {
        name: properties.get("Environment", {}).get("Variables", {}) for name, properties in functions(template).items()
    }


def api_routes(template: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    """Return the method and the path of every `Api` event, in order; ANY stands for all methods without an event."""
    properties = own_properties(load_template() if template is None else template).values()
    events = [event for function in properties for event in function.get("Events", {}).values()]
    routes = [event["Properties"] for event in events if event["Type"] == "Api"]
    return [(route["Method"].upper(), route["Path"]) for route in routes]


def logical_names(template: dict[str, Any] | None = None) -> dict[str, str]:
    """Return the logical name of each function, by the folder of its code."""
    resources = own_properties(load_template() if template is None else template)
    return {Path(properties["CodeUri"]).name: name for name, properties in resources.items()}


def function_suffixes(template: dict[str, Any]) -> list[str]:
    """Return what follows the name of the stack in the name of each function."""
    names = [properties["FunctionName"]["Fn::Sub"] for properties in own_properties(template).values()]
    return [name.removeprefix("${AWS::StackName}") for name in names]


def _merged(common: Any, own: Any) -> Any:
    """Merge maps and concatenate lists; any other value of the function replaces the common one."""
    if _is_map(common) and _is_map(own):
        return {**common, **{key: _merged(common[key], own[key]) if key in common else own[key] for key in own}}
    if isinstance(common, list) and isinstance(own, list):
        return common + own
    return own


def _is_map(node: Any) -> bool:
    """Return whether a node is a map and not an intrinsic function such as `Ref` or `Fn::If`."""
    return isinstance(node, dict) and not any(key in _UNPREFIXED or key.startswith("Fn::") for key in node)


def _unshared(node: Any) -> Any:
    """Return a deep copy, in which an anchor and its aliases share nothing."""
    if isinstance(node, dict):
        return {name: _unshared(value) for name, value in node.items()}
    return [_unshared(item) for item in node] if isinstance(node, list) else node
