"""Paths of this checkout."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
STATE = CHECKOUT / ".grantwire"  # installed tools, builds, caches, data and logs
CACHE = STATE / "cache"
LAYER = CHECKOUT / "layers" / "core" / "python"
# What the layers with packages are installed from, by their names in template.yaml.
LAYER_LOCKS = {
    "CoreLayer": LAYER / "requirements.txt",
    "CredentialsLayer": CHECKOUT / "layers" / "credentials" / "requirements.txt",
}
# The folders of the packages in the layer: the service and the idempotency library.
PACKAGES = (LAYER, CHECKOUT / "layers" / "idempotency" / "src")
TEMPLATE = CHECKOUT / "template.yaml"
EVENTS = CHECKOUT / "infra" / "events"
DESCRIPTION = "stack.json"  # in a state folder: the addresses of the running stack, for scripts
