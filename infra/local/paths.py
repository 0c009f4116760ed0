"""Where things are in this checkout."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
STATE = CHECKOUT / ".grantwire"  # everything that is installed, built, cached or running
CACHE = STATE / "cache"
LAYER = CHECKOUT / "layers" / "core" / "python"
# The folders whose packages the layer ships: the service, and the idempotency library below it.
PACKAGES = (LAYER, CHECKOUT / "layers" / "idempotency" / "src")
TEMPLATE = CHECKOUT / "template.yaml"
EVENTS = CHECKOUT / "infra" / "events"
DESCRIPTION = "stack.json"  # in a state folder: what scripts are told about the running stack
