"""Grants, revokes and extensions, each at most once: the key is known before the request is sent."""

from __future__ import annotations

import shlex
import uuid
from typing import TYPE_CHECKING, Any

from grantwire_cli.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grantwire_cli.api import Response
    from grantwire_cli.session import Session

PATHS = {
    "grant": "/v1/entitlements/grants",
    "revoke": "/v1/entitlements/revokes",
    "extend": "/v1/entitlements/extensions",
}


def send_change(session: Session, operation: str, key: str | None, body: Mapping[str, Any]) -> Response:
    """Send a change with its key, and repeat it with the same key while the outcome is unknown.

    A new key is printed before the request is sent. Raises UnavailableError, which says how to repeat the change
    safely, if the outcome stays unknown.
    """
    chosen = key or str(uuid.uuid4())
    target = session.target
    session.note(f"{operation} on {target.title}, Idempotency-Key {chosen}")
    body = {"purchase_id": chosen, **body}
    try:
        return session.api.post(PATHS[operation], body, key=chosen)
    except UnavailableError as error:
        hint = (
            f"The change may or may not have been made. Repeat it safely with the same key and fields:\n  "
            f"{_command_line(operation, chosen, body)}"
        )
        raise UnavailableError(str(error), hint=hint, code=error.code) from error


def _command_line(operation: str, key: str, body: Mapping[str, Any]) -> str:
    """Return the command of a change. The option of a field has its name: `--purchase-id`; a time is `--starts`."""
    arguments = ("user_id", "stock_keeping_unit")
    options = {name: value for name, value in body.items() if name not in arguments} | {"key": key}
    words = ["grantwire", "entitlements", operation, *(str(body[name]) for name in arguments)]
    for name, value in options.items():
        if value is not None:
            words += ["--" + name.removesuffix("_at").replace("_", "-"), str(value)]
    if operation == "extend" and body.get("expires_at") is None:
        words.append("--no-end")
    return shlex.join(words)
