"""Parsing of the commands that manage clients."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grantwire.clients.commands import ClientCommand
from grantwire.clients.scopes import Scope
from grantwire.errors import BadRequestError

OPERATOR = {"actor": "ann", "reason": "a new shop"}
CREATE = {"action": "create", "name": "shop", "scopes": ["entitlements:write"], **OPERATOR}
ROTATE = {"action": "rotate", "client_id": "0123456789ab", **OPERATOR}
LIMITS = {"action": "limits", "client_id": "0123456789ab", **OPERATOR}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
FIELDS = (
    *("action", "name", "scopes", "client_id", "overlap", "expires_in", "rate_limit", "burst_limit"),
    *("actor", "reason", "with_descendants", "created_by", "token", ""),
)


def test_command_has_defaults() -> None:
    """A client does not expire by default. A rotated token stays valid for one day by default."""
    created = ClientCommand.parse(CREATE)
    assert (created.actor, created.reason) == ("ann", "a new shop")
    assert (created.name, created.scopes, created.expires_in) == ("shop", [Scope.WRITE_ENTITLEMENTS], None)
    rotated = ClientCommand.parse(ROTATE)
    assert (rotated.client_id, rotated.overlap, rotated.expires_in) == ("0123456789ab", timedelta(days=1), None)
    assert ClientCommand.parse(ROTATE | {"overlap": "0s", "expires_in": "90d"}).expires_in == timedelta(days=90)
    assert ClientCommand.parse(CREATE | {"scopes": ["ops:read", "ops:read"]}).scopes == [Scope.READ_OPERATIONS]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({}, "action must be one of create, list, rotate, limits, revoke"),
        ({"action": "drop"}, "action must be one of"),
        ({"action": ["create"]}, "action must be one of"),
        ({"action": "list", "name": "x"}, "action list does not accept name"),
        (CREATE | {"token": "x", "client_id": "y"}, "action create does not accept client_id, token"),
        (CREATE | {"name": " "}, "name must not be empty"),
        (CREATE | {"name": "x" * 65}, "name must have at most 64"),
        (CREATE | {"name": "a\nb"}, "name must not contain control"),
        ({"action": "create", "scopes": ["ops:read"]}, "name must be a string"),
        ({"action": "create", "name": "x"}, "scopes must be a list"),
        (CREATE | {"scopes": []}, "scopes must be a list"),
        (CREATE | {"scopes": "ops:read"}, "scopes must be a list"),
        (CREATE | {"scopes": ["ops:read", "root"]}, "scopes must be a list of one or more of entitlements:write"),
        (CREATE | {"scopes": [["ops:read"]]}, "scopes must be a list"),
        (CREATE | {"expires_in": ""}, "expires_in must be a duration"),
        (CREATE | {"expires_in": "0s"}, "expires_in must be a duration"),
        (CREATE | {"expires_in": 90}, "expires_in must be a duration"),
        (CREATE | {"expires_in": "-1d"}, "expires_in must be a duration"),
        (CREATE | {"expires_in": "3651d"}, "up to 3650d"),
        (CREATE | {"expires_in": "9" * 400 + "d"}, "expires_in must be a duration"),
        (ROTATE | {"overlap": "soon"}, "overlap must be a duration"),
        (ROTATE | {"overlap": None}, "overlap must be a duration"),
        ({"action": "rotate"}, "client_id must be a string"),
        (LIMITS | {"rate_limit": 0}, "rate_limit must be a whole number between 1 and 1000000"),
        (LIMITS | {"rate_limit": 1_000_001}, "rate_limit must be a whole number"),
        (LIMITS | {"rate_limit": "50"}, "rate_limit must be a whole number"),
        (LIMITS | {"rate_limit": 1.5}, "rate_limit must be a whole number"),
        (CREATE | {"burst_limit": True}, "burst_limit must be a whole number"),
        (ROTATE | {"rate_limit": 1}, "action rotate does not accept rate_limit"),
        ({"action": "limits", "rate_limit": 1}, "client_id must be a string"),
        ({"action": "revoke", "client_id": "0" * 13}, "client_id must have at most 12"),
        ({"action": "revoke", "client_id": "x", "overlap": "1s"}, "action revoke does not accept overlap"),
        ({"action": "revoke", "client_id": "x", "with_descendants": 1}, "with_descendants must be true or false"),
        (ROTATE | {"with_descendants": True}, "action rotate does not accept with_descendants"),
        (CREATE | {"created_by": "0123456789ab"}, "action create does not accept created_by"),
        ({"action": "revoke", "client_id": "x", "reason": "leaked"}, "actor is missing: state who gives the command"),
        ({"action": "revoke", "client_id": "x", "actor": "ann"}, "reason is missing: state why"),
        (CREATE | {"reason": " "}, "reason must not be empty"),
        (ROTATE | {"actor": "x" * 501}, "actor must have at most 500"),
        (CREATE | {"source": "elsewhere"}, "action create does not accept source"),
    ],
)
def test_invalid_command_is_rejected_with_the_field_and_what_is_allowed(event: dict[str, Any], message: str) -> None:
    """Invalid values are never guessed: an empty expires_in does not mean that the client never expires."""
    with pytest.raises(BadRequestError, match=message):
        ClientCommand.parse(event)


@given(st.one_of(JSON, st.dictionaries(st.sampled_from(FIELDS), JSON | st.sampled_from(["create", "list", "90d"]))))
def test_any_event_is_a_valid_command_or_a_bad_request(event: object) -> None:
    """No event raises another error, and no accepted value violates a constraint of the database."""
    try:
        command = ClientCommand.parse(event)
    except BadRequestError:
        return
    assert command.action in {"create", "list", "rotate", "limits", "revoke"}
    assert command.action != "create" or (0 < len(command.name) <= 64 and command.scopes)
    assert command.overlap >= timedelta(0)
    assert all(limit is None or 1 <= limit <= 1_000_000 for limit in command.limits)
    assert command.action == "list" or (command.actor and command.reason)


@given(
    name=st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=64),
    scopes=st.lists(st.sampled_from([scope.value for scope in Scope]), min_size=1, max_size=8),
    days=st.integers(min_value=1, max_value=3650),
)
def test_valid_command_keeps_all_values(name: str, scopes: list[str], days: int) -> None:
    """Duplicate scopes are removed; the order of first mention stays."""
    command = ClientCommand.parse(
        {"action": "create", "name": name, "scopes": scopes, "expires_in": f"{days}d"} | OPERATOR
    )
    assert (command.name, command.expires_in) == (name, timedelta(days=days))
    assert command.scopes == list(dict.fromkeys(scopes))
