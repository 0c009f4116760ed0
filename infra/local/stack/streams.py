"""The streams and consumers of a local stack, created or updated by the code of the function configure_streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.local.deployment.template import declared_parameters
from infra.local.layer import PLAINTEXT, product_code
from infra.local.servers.nats_users import INBOX_PREFIXES, TOPOLOGY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# The parameter of the template behind each variable of configure_streams.
PARAMETERS = {
    "ENTITLEMENT_NATS_SUBJECT": "EventSubject",
    "ENTITLEMENT_NATS_STREAM": "EventStream",
    "ENTITLEMENT_NATS_REPLICAS": "EventStreamReplicas",
    "ENTITLEMENT_NATS_READERS": "ReaderConsumers",
    "NOTIFICATION_NATS_STREAM": "EventStream",
    "NOTIFICATION_NATS_DURABLE": "EventConsumer",
    "NOTIFICATION_NATS_ADVISORY_STREAM": "AdvisoryStream",
    "NOTIFICATION_RETENTION_RETENTION_DAYS": "RetentionDays",
}


def topology_variables(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the names and limits of streams and consumers, as the template and `parameters` say."""
    values = {**declared_parameters(), **parameters}
    return {variable: values[parameter] for variable, parameter in PARAMETERS.items()}


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
