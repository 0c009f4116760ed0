"""The receiver of a local stack's notifications, which `make up WEBHOOK=URL` chooses. Later starts keep it."""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from infra.local.errors import CommandError
from infra.local.system import files

if TYPE_CHECKING:
    from pathlib import Path

OFF = "off"
_RECORD = "webhook.json"
_KEY = "webhook-key"


def choose(state: Path, url: str) -> None:
    """Keep the address of the receiver, and create the key that signs requests; `off` removes the address.

    Raises CommandError if the address cannot be one.
    """
    if url == OFF:
        (state / _RECORD).unlink(missing_ok=True)
        return
    if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname:
        hint = "For example: make up WEBHOOK=http://127.0.0.1:4242/hook"
        raise CommandError(f'WEBHOOK must be off, or an address with http:// or https://, not "{url}".', hint=hint)
    state.mkdir(parents=True, exist_ok=True)
    key = state / _KEY
    if not key.exists():
        files.write_private(key, f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}")
    files.write_record(state / _RECORD, {"url": url})


def parameters(state: Path) -> dict[str, str]:
    """Return the parameters of the template for the receiver that was chosen; none if there is none."""
    url = files.read_record(state / _RECORD).get("url")
    if url is None:
        return {}
    return {"NotificationSender": "webhook", "WebhookUrl": str(url), "WebhookKeys": (state / _KEY).read_text()}


def describe(state: Path) -> str:
    """Return where notifications go, for people."""
    url = files.read_record(state / _RECORD).get("url")
    if url is None:
        return "none: notifications are written to the log (make up WEBHOOK=http://127.0.0.1:4242/hook)"
    return f"{url}  (requests are signed with the key in {state / _KEY})"
