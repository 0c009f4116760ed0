"""The template's functions with `Globals` merged into each, as SAM does it when it deploys them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

FUNCTION = "AWS::Serverless::Function"


def functions(template: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Give the properties of each function by its logical name; the template is in its long form and stays as it is."""
    common = template.get("Globals", {}).get("Function", {})
    return {
        name: _merged(common, resource["Properties"])
        for name, resource in template["Resources"].items()
        if resource["Type"] == FUNCTION
    }


def _merged(common: Any, own: Any) -> Any:
    """Merge maps and join lists; any other value of the function replaces the common one."""
    if _is_map(common) and _is_map(own):
        return {**common, **{key: _merged(common[key], own[key]) if key in common else own[key] for key in own}}
    if isinstance(common, list) and isinstance(own, list):
        return common + own
    return own


def _is_map(node: Any) -> bool:
    """Tell a map from a function such as `Ref` or `Fn::If`, which is a value."""
    return isinstance(node, dict) and not any(key in {"Ref", "Condition"} or key.startswith("Fn::") for key in node)
