"""The runtime of configure_streams."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.settings import NatsSettings
from grantwire.jetstream.topology import TopologyChanges, TopologySettings, ensure_topology
from grantwire.settings import group, load, names, setting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class ConfigurationSettings:
    """The settings of configure_streams, which connects to NATS as a user that may change streams."""

    nats: NatsSettings = group(NatsSettings)
    topology: TopologySettings = group(TopologySettings)
    # Durable consumers of other systems. A consumer that is removed here is not deleted.
    readers: tuple[str, ...] | None = setting("ENTITLEMENT_NATS_READERS", names, optional=True)


@dataclass(frozen=True, slots=True)
class ConfigurationRuntime:
    """The objects that configure_streams needs."""

    settings: ConfigurationSettings

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; each call opens its own connection."""
        return cls(load(ConfigurationSettings, environ))

    def configure(self) -> dict[str, Any]:
        """Create or update the streams and consumers; return the names of those that were created and updated.

        Raises RetryableError if NATS is unavailable or refuses a change.
        """
        changes = asyncio.run(self._configure())
        return {"created": changes.created, "updated": changes.updated}

    async def _configure(self) -> TopologyChanges:
        connection = NatsConnection(self.settings.nats, name="grantwire-topology")
        await connection.connect()
        try:
            return await ensure_topology(connection, self.settings.topology, self.settings.readers or ())
        finally:
            await connection.close()
