"""The streams and consumers of a local stack, created or updated by the code of the function configure_streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.local.deployment.conditions import ConditionEvaluator
from infra.local.deployment.template import function_variables, load_template
from infra.local.layer import PLAINTEXT, product_code
from infra.local.servers.nats_users import INBOX_PREFIXES, TOPOLOGY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FUNCTION = "ConfigureStreamsFunction"


def topology_variables(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of configure_streams about streams and consumers, for the parameters of a stack."""
    template = load_template()
    evaluate = ConditionEvaluator(template, parameters).text
    return {
        name: evaluate(value) or ""
        for name, value in function_variables(template)[FUNCTION].items()
        if name.startswith(("ENTITLEMENT_", "NOTIFICATION_")) or name == "GRANTWIRE_SETTINGS"
    }


def configure_streams(url: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Create or update the streams and consumers as the template and `parameters` say; return the changes.

    Raises CommandError if NATS is unavailable or refuses a change.
    """
    environ = {
        **PLAINTEXT,
        **topology_variables(parameters),
        "NATS_URL": url,
        "NATS_INBOX_PREFIX": INBOX_PREFIXES[TOPOLOGY],
    }
    with product_code("See the log of NATS. `make clean` starts over with empty streams."):
        from grantwire.wiring.tasks.configure_streams import ConfigurationRuntime  # noqa: PLC0415  # importable here

        return ConfigurationRuntime.build(environ).configure()
