"""What the gateway in front of a route does, and what the route must therefore do itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.settings import flag, load, setting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from grantwire.clients.authorizer import DecisionCache


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What the gateway in front of a route does. The defaults are those of API Gateway on AWS."""

    authenticates: bool = setting("GATEWAY_AUTHENTICATES", flag, default="true")
    decodes_path: bool = setting("GATEWAY_DECODES_PATH", flag, default="false")


@dataclass(frozen=True, slots=True)
class Gateway:
    """The gateway in front of a route. `callers` decides about callers if the gateway does not authenticate them."""

    decodes_path: bool = False
    callers: DecisionCache | None = None

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; it connects to the database on first use."""
        settings = load(GatewaySettings, environ)
        if settings.authenticates:
            return cls(settings.decodes_path)
        # A route behind an authorizer does not load this module.
        from grantwire.wiring.authentication import build_decisions  # noqa: PLC0415

        return cls(settings.decodes_path, build_decisions(environ))
