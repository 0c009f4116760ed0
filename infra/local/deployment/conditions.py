"""Evaluation of a template's conditions and rules for given parameters; `sam local` knows only the defaults."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from infra.local.deployment.template import parameter_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping


class ConditionEvaluator:
    """A template in long form, with values for all of its parameters."""

    def __init__(self, template: dict[str, Any], parameters: Mapping[str, str]) -> None:
        self._values = {**parameter_defaults(template), **parameters}
        self._conditions: Mapping[str, Any] = template.get("Conditions", {})
        self._mappings: Mapping[str, Any] = template.get("Mappings", {})
        self._rules: Mapping[str, Any] = template.get("Rules", {})

    def choose(self, node: Any) -> Any:
        """Return what an `Fn::If` selects; any other node is returned as it is."""
        while isinstance(node, dict) and "Fn::If" in node:
            condition, yes, no = node["Fn::If"]
            node = yes if self.holds({"Condition": condition}) else no
        return node

    def text(self, node: Any) -> str | None:
        """Return the value of a literal, a `Ref`, `Fn::Sub`, `Fn::FindInMap` or `Fn::If` of parameters; or None."""
        node = self.choose(node)
        if isinstance(node, bool):
            return str(node).lower()
        if isinstance(node, str | int | float):
            return str(node)
        if isinstance(node, dict) and "Fn::FindInMap" in node:
            name, *keys = node["Fn::FindInMap"]
            first, second = map(self.text, keys)
            return self.text(self._mappings[name][first][second])
        if isinstance(node, dict) and isinstance(node.get("Fn::Sub"), str):
            return self._substituted(node["Fn::Sub"])
        return self._values.get(node["Ref"]) if isinstance(node, dict) and "Ref" in node else None

    def _substituted(self, text: str) -> str | None:
        """Return a text with the values of its parameters; None if it names anything else, such as a resource."""
        names = set(re.findall(r"\$\{([^}]+)\}", text))
        if not names <= self._values.keys():
            return None
        return re.sub(r"\$\{([^}]+)\}", lambda match: self._values[match[1]], text)

    def holds(self, expression: Any) -> bool:
        """Return whether a condition, or the assertion of a rule, is true."""
        ((function, operands),) = expression.items()
        if function == "Condition":
            return self.holds(self._conditions[operands])
        if function == "Fn::Equals":
            left, right = map(self.text, operands)
            return left == right
        if function == "Fn::Contains":
            allowed, value = operands
            return self.text(value) in allowed
        if function == "Fn::EachMemberEquals":
            members, value = operands
            return all(member == self.text(value) for member in (self.text(members) or "").split(","))
        results = [self.holds(operand) for operand in operands]
        return {"Fn::And": all(results), "Fn::Or": any(results), "Fn::Not": not results[0]}[function]

    def accepts(self, rule: str) -> bool:
        """Return whether the parameters satisfy one of the template's rules."""
        definition = self._rules[rule]
        if "RuleCondition" in definition and not self.holds(definition["RuleCondition"]):
            return True
        return all(self.holds(assertion["Assert"]) for assertion in definition["Assertions"])
