"""What an operator asks for about service clients, read without trusting it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire.clients.scopes import Scope
from grantwire.errors import BadRequestError
from grantwire.observability import logger
from grantwire.settings import parse_duration
from grantwire.validation import MAX_CLIENT_NAME_LENGTH, clean_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grantwire.clients.store import Clients

_ACTIONS = {
    "create": {"action", "name", "scopes", "expires_in"},
    "list": {"action"},
    "rotate": {"action", "client_id", "overlap", "expires_in"},
    "revoke": {"action", "client_id"},
}
_OVERLAP = "24h"
_SHORTEST = timedelta(seconds=1)
_LONGEST = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class ClientCommand:
    """`{"action": "create | list | rotate | revoke", ...}`; the fields that the action takes, and no others."""

    action: str
    name: str = ""
    scopes: Sequence[Scope] = ()
    client_id: str = ""
    overlap: timedelta = timedelta(0)
    expires_in: timedelta | None = None

    @classmethod
    def parse(cls, event: Any) -> ClientCommand:
        """Read an event, or raise BadRequestError that says what to send."""
        action = event.get("action") if isinstance(event, Mapping) else None
        if not isinstance(action, str) or action not in _ACTIONS:
            raise BadRequestError(f"action must be one of {', '.join(_ACTIONS)}")
        if unknown := sorted(set(event) - _ACTIONS[action]):
            raise BadRequestError(f"{action} takes no {', '.join(unknown)}")
        takes = _ACTIONS[action]
        ends = event.get("expires_in")
        return cls(
            action,
            name=clean_text("name", event.get("name"), longest=MAX_CLIENT_NAME_LENGTH) if "name" in takes else "",
            scopes=_scopes(event) if "scopes" in takes else (),
            client_id=clean_text("client_id", event.get("client_id"), longest=12) if "client_id" in takes else "",
            overlap=_duration("overlap", event.get("overlap", _OVERLAP), shortest=timedelta(0)),
            expires_in=None if ends is None else _duration("expires_in", ends, shortest=_SHORTEST),
        )

    def execute(self, clients: Clients) -> dict[str, Any]:
        """The answer; a token is in it once, and nowhere else ever."""
        if self.action == "list":
            return {"clients": clients.all()}
        if self.action == "revoke":
            clients.revoke(self.client_id)
            logger.info("client command executed", action=self.action, client_id=self.client_id)
            return {"client_id": self.client_id, "revoked": True}
        if self.action == "create":
            issued = clients.create(self.name, self.scopes, self.expires_in)
        else:
            issued = clients.rotate(self.client_id, self.overlap, self.expires_in)
        token = issued.token
        logger.info(
            "client command executed", action=self.action, client_id=token.client_id, expires_at=issued.expires_at
        )
        return {"client_id": token.client_id, "token": token.text, "expires_at": issued.expires_at}


def _scopes(event: Mapping[str, Any]) -> Sequence[Scope]:
    asked = event.get("scopes")
    known = [scope.value for scope in Scope]
    if not isinstance(asked, list) or not asked or any(scope not in known for scope in asked):
        raise BadRequestError(f"scopes must be a list of one or more of {', '.join(known)}")
    return [Scope(scope) for scope in dict.fromkeys(asked)]


def _duration(name: str, value: Any, *, shortest: timedelta) -> timedelta:
    try:
        length = parse_duration(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        length = None
    if length is None or not shortest <= length <= _LONGEST:
        raise BadRequestError(f"{name} must be a duration such as 24h or 90d, up to {_LONGEST.days}d")
    return length
