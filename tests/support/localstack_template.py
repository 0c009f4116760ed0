"""What `make up STACK=localstack` deploys: as SAM builds it, without code, and as the SAM in LocalStack reads it."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

from infra.local.deployment.template import LAYER_VERSION, load_template, own_properties, write_template
from infra.local.progress import Progress
from infra.local.toolchain import environments
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PROGRAM = ROOT / "tests" / "support" / "translate.py"
ACCOUNT = "000000000000"


def write_build(folder: Path) -> None:
    """Write what `sam build` writes, but with functions that do nothing and empty layers."""
    template = load_template()
    for name, properties in own_properties(template).items():
        properties["CodeUri"] = name
        (folder / name).mkdir(parents=True)
        (folder / name / "handler.py").write_text(f"def handler(event, context):\n    return {name!r}\n")
    for name, resource in template["Resources"].items():
        if resource["Type"] == LAYER_VERSION:
            resource["Properties"]["ContentUri"] = name
            (folder / name / "python").mkdir(parents=True)
    write_template(template, folder / "template.yaml")


def translate(template: Path, parameters: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Translate a template with the SAM translator of LocalStack; return the result, and its errors if it failed."""
    environments.ensure_further(environments.TRANSLATOR, Progress())
    content = load_template(template)
    for resource in content["Resources"].values():
        for name in {"CodeUri", "ContentUri"} & resource.get("Properties", {}).keys():
            resource["Properties"][name] = "s3://bucket/key"
    given = json.dumps([content, dict(parameters)])
    command: list[str | Path] = [environments.TRANSLATOR.python, "-I", PROGRAM]
    result = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    return (json.loads(result.stdout) if result.returncode == 0 else {}), result.stderr


def without_functions(template: dict[str, Any]) -> dict[str, Any]:
    """Return a translated template without functions; what refers to one has the name or the ARN as text."""
    resources: dict[str, Any] = template["Resources"]
    functions = {name for name, resource in resources.items() if resource["Type"] == "AWS::Lambda::Function"}
    kept = {name: resource for name, resource in resources.items() if not resource["Type"].startswith("AWS::Lambda::")}
    return {**template, "Resources": {name: _named(resource, functions) for name, resource in kept.items()}}


def _named(node: Any, functions: set[str]) -> Any:
    if isinstance(node, list):
        return [_named(item, functions) for item in node]
    if isinstance(node, str):
        return re.sub(r"\$\{(\w+)\.Arn\}", lambda match: _arn(match[1]) if match[1] in functions else match[0], node)
    if not isinstance(node, dict):
        return node
    if node.get("Ref") in functions:
        return node["Ref"]
    attribute = node.get("Fn::GetAtt")
    if attribute and attribute[0] in functions:
        return _arn(attribute[0])
    return {name: _named(value, functions) for name, value in node.items()}


def _arn(function: str) -> str:
    return f"arn:aws:lambda:us-east-1:{ACCOUNT}:function:{function}"
