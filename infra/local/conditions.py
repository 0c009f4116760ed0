"""The template's conditions, decided for given parameters: `sam local` decides them for the defaults only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Decisions:
    """One template, in its long form, with values for all of its parameters."""

    def __init__(self, template: Mapping[str, Any], parameters: Mapping[str, str]) -> None:
        defaults = {name: str(one.get("Default", "")) for name, one in template["Parameters"].items()}
        self._values = {**defaults, **parameters}
        self._conditions: Mapping[str, Any] = template.get("Conditions", {})

    def text(self, node: Any) -> str | None:
        """Give what a literal, a `Ref` to a parameter or an `Fn::If` of these comes to; none for anything else."""
        if isinstance(node, str):
            return node
        if isinstance(node, dict) and "Fn::If" in node:
            condition, yes, no = node["Fn::If"]
            return self.text(yes if self.holds({"Condition": condition}) else no)
        return self._values.get(node["Ref"]) if isinstance(node, dict) and "Ref" in node else None

    def holds(self, expression: Any) -> bool:
        """Tell whether a condition holds."""
        ((function, operands),) = expression.items()
        if function == "Condition":
            return self.holds(self._conditions[operands])
        if function == "Fn::Equals":
            left, right = map(self.text, operands)
            return left == right
        results = [self.holds(one) for one in operands]
        return {"Fn::And": all(results), "Fn::Or": any(results), "Fn::Not": not results[0]}[function]
