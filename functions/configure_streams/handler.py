"""Create or update the streams and consumers of NATS; invoked after each deployment."""

from collections.abc import Mapping
from typing import Any

from grantwire.wiring.tasks.configure_streams import ConfigurationRuntime
from grantwire.wiring.tasks.handler import TaskHandler


def handle(_event: Mapping[str, Any], rt: ConfigurationRuntime, _source: str) -> dict[str, Any]:
    """Return the names of the streams and consumers that were created, and of those that were updated."""
    return rt.configure()


handler = TaskHandler("configure_streams", ConfigurationRuntime.build, handle)
