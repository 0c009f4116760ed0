"""The copy of a template that LocalStack can deploy.

The last LocalStack that starts without an account has SAM's translator 1.107, which refuses properties that newer ones
know. Only properties without a meaning on one machine are left out. Neither template.yaml nor SAM's build is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.local.deployment.template import load_template, write_template

if TYPE_CHECKING:
    from pathlib import Path

TRANSLATOR = "1.107.0"
# Both limit TLS, which LocalStack's API does not use.
_UNKNOWN_PROPERTIES = {"AWS::Serverless::Api": ("EndpointAccessMode", "SecurityPolicy")}


def write_localstack_template(template: Path) -> Path:
    """Write the copy next to a built template, whose relative paths it keeps, and return its path."""
    content = load_template(template)
    for resource in content["Resources"].values():
        for name in _UNKNOWN_PROPERTIES.get(resource["Type"], ()):
            resource["Properties"].pop(name, None)
    path = template.with_name("localstack.yaml")
    write_template(content, path)
    return path
