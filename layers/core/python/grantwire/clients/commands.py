"""The commands that create, list, rotate, limit and revoke service clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire.clients.limits import MAX_LIMIT
from grantwire.clients.scopes import Scope
from grantwire.clients.store import DEFAULT_LIMITS, ClientLimits
from grantwire.clients.tokens import CLIENT_ID_LENGTH
from grantwire.errors import BadRequestError
from grantwire.observability import logger
from grantwire.operator_actions import Operator, parse_actor_and_reason
from grantwire.settings import parse_duration
from grantwire.validation import MAX_CLIENT_NAME_LENGTH, clean_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grantwire.clients.store import Clients
    from grantwire.database import Connection

# The fields that each action accepts. Every action that changes a client is recorded, with actor and reason.
_ACTION_FIELDS = {
    "create": {"action", "name", "scopes", "expires_in", "rate_limit", "burst_limit", "actor", "reason"},
    "list": {"action"},
    "rotate": {"action", "client_id", "overlap", "expires_in", "actor", "reason"},
    "limits": {"action", "client_id", "rate_limit", "burst_limit", "actor", "reason"},
    "revoke": {"action", "client_id", "with_descendants", "actor", "reason"},
}
_DEFAULT_OVERLAP = "24h"
_MIN_LIFETIME = timedelta(seconds=1)
_MAX_DURATION = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class ClientCommand:
    """An operator's command: `{"action": "create", ...}` with the fields of the action."""

    action: str
    name: str = ""
    scopes: Sequence[Scope] = ()
    client_id: str = ""
    overlap: timedelta = timedelta(0)
    expires_in: timedelta | None = None
    limits: ClientLimits = DEFAULT_LIMITS
    with_descendants: bool = False
    created_by: str | None = None  # never a field of the event
    actor: str = ""
    reason: str = ""

    @classmethod
    def parse(cls, event: Any) -> ClientCommand:
        """Validate the event of an invocation. The BadRequestError names the invalid field and what is allowed."""
        action = event.get("action") if isinstance(event, Mapping) else None
        if not isinstance(action, str) or action not in _ACTION_FIELDS:
            raise BadRequestError(f"action must be one of {', '.join(_ACTION_FIELDS)}")
        allowed = _ACTION_FIELDS[action]
        if unknown := sorted(set(event) - allowed):
            raise BadRequestError(f"action {action} does not accept {', '.join(unknown)}")
        expires_in = event.get("expires_in")
        command = cls(
            action,
            name=clean_text("name", event.get("name"), max_length=MAX_CLIENT_NAME_LENGTH) if "name" in allowed else "",
            scopes=_parse_scopes(event) if "scopes" in allowed else (),
            client_id=clean_text("client_id", event.get("client_id"), max_length=CLIENT_ID_LENGTH)
            if "client_id" in allowed
            else "",
            overlap=_parse_duration("overlap", event.get("overlap", _DEFAULT_OVERLAP), minimum=timedelta(0)),
            expires_in=None if expires_in is None else _parse_duration("expires_in", expires_in, minimum=_MIN_LIFETIME),
            limits=ClientLimits(_parse_limit("rate_limit", event), _parse_limit("burst_limit", event)),
            with_descendants=_parse_flag("with_descendants", event),
        )
        if "reason" not in allowed:
            return command
        actor, reason = parse_actor_and_reason(event)
        return replace(command, actor=actor, reason=reason)

    def execute(self, clients: Clients, source: str, within: Connection | None = None) -> dict[str, Any]:
        """Execute the command and return its result. `source` says where it came from, and is recorded with it.

        A change commits in a transaction of its own, or in the caller's transaction `within`. The result of create and
        rotate contains the new token. It cannot be read again later.
        """
        if self.action == "list":
            return {"clients": clients.list_all()}
        operator = Operator(self.actor, self.reason, source)
        if self.action == "revoke":
            revocation = clients.revoke(operator, self.client_id, with_descendants=self.with_descendants, within=within)
            self._log(operator, self.client_id, **revocation._asdict())
            return {"client_id": self.client_id, "revoked": True, **revocation._asdict()}
        if self.action == "limits":
            clients.set_limits(operator, self.client_id, self.limits, within=within)
            self._log(operator, self.client_id)
            return {"client_id": self.client_id, **self.limits._asdict()}
        if self.action == "create":
            issued = clients.create(
                operator,
                self.name,
                self.scopes,
                self.expires_in,
                self.limits,
                created_by=self.created_by,
                within=within,
            )
        else:
            issued = clients.rotate(operator, self.client_id, self.overlap, self.expires_in, within=within)
        token = issued.token
        self._log(operator, token.client_id, expires_at=issued.expires_at)
        return {"client_id": token.client_id, "token": token.text, "expires_at": issued.expires_at}

    def _log(self, operator: Operator, client_id: str, **fields: Any) -> None:
        logger.info(
            "client command executed",
            action=self.action,
            client_id=client_id,
            actor=operator.actor,
            **fields,
        )


def _parse_scopes(event: Mapping[str, Any]) -> Sequence[Scope]:
    requested = event.get("scopes")
    allowed = [scope.value for scope in Scope]
    if not isinstance(requested, list) or not requested or any(scope not in allowed for scope in requested):
        raise BadRequestError(f"scopes must be a list of one or more of {', '.join(allowed)}")
    return [Scope(scope) for scope in dict.fromkeys(requested)]


def _parse_limit(name: str, event: Mapping[str, Any]) -> int | None:
    """Return a limit, or None for the default of the installation."""
    value = event.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_LIMIT:
        raise BadRequestError(f"{name} must be a whole number between 1 and {MAX_LIMIT}")
    return value


def _parse_flag(name: str, event: Mapping[str, Any]) -> bool:
    value = event.get(name, False)
    if not isinstance(value, bool):
        raise BadRequestError(f"{name} must be true or false")
    return value


def _parse_duration(name: str, value: Any, *, minimum: timedelta) -> timedelta:
    try:
        duration = parse_duration(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        duration = None
    if duration is None or not minimum <= duration <= _MAX_DURATION:
        raise BadRequestError(f"{name} must be a duration such as 24h or 90d, up to {_MAX_DURATION.days}d")
    return duration
