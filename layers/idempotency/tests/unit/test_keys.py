"""C2: key strategies."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from aws_lambda_powertools.utilities.data_classes import EventBridgeEvent
from hypothesis import given
from hypothesis import strategies as st

from grantwire_idempotency import (
    Message,
    Outcome,
    business_key,
    entity_key,
    message_id,
    payload_hash,
    request_id,
)
from grantwire_idempotency.errors import BadRequestError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

ORDER = {"order_id": "o_1", "customer": {"id": "c_1", "email": "a@b.example"}, "amount": 5}


def message(payload: object, **attributes: str) -> Message:
    """Return a message with this payload."""
    return Message("m_1", "order.created", json.dumps(payload), attributes)


def test_message_id_is_key() -> None:
    """C2: the default of consumers."""
    assert message_id(message(ORDER)) == "m_1"


def test_id_field_is_key_of_mapping() -> None:
    """C2: for example, the id of an EventBridge event, as a dictionary or wrapped by Powertools."""
    event = {"id": "e_1", "detail": {}}
    assert message_id(event, object()) == message_id(EventBridgeEvent(event)) == "e_1"
    with pytest.raises(BadRequestError, match="id is missing"):
        message_id({"detail": {}})


def test_business_key_is_sha256_of_canonical_json() -> None:
    """C2, 000: the expected value is spelled out, because a changed key makes every message new."""
    canonical = '{"fields":{"customer.email":"a@b.example","order_id":"o_1"},"kind":"order"}'
    expected = hashlib.sha256(canonical.encode()).hexdigest()
    assert business_key("order", "order_id", "customer.email")(message(ORDER)) == expected
    assert business_key("order", "customer.email", "order_id")(ORDER) == expected


def test_business_key_depends_only_on_its_fields() -> None:
    """000: the same event from another sender, in another message, with another amount."""
    key = business_key("order", "order_id")
    again = Message("m_2", body=json.dumps({"amount": 6, "order_id": "o_1"}))
    assert key(message(ORDER)) == key(again)
    assert key(message(ORDER)) != business_key("refund", "order_id")(message(ORDER))


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_different_values_have_different_business_keys(one: tuple[str, str], other: tuple[str, str]) -> None:
    """C2: a joined string would confuse `a:b, c` with `a, b:c`."""
    key = business_key("user", "id", "email")
    same = key({"id": one[0], "email": one[1]}) == key({"id": other[0], "email": other[1]})
    assert same == (one == other)


@pytest.mark.parametrize("pair", [("a:b", "c"), ('a","b', "c"), ("", "a:bc"), ("a", "b:c\x00")])
def test_separators_in_values_do_not_collide(pair: tuple[str, str]) -> None:
    """C2: values that a naive canonical form would confuse."""
    key = business_key("user", "id", "email")
    assert key({"id": pair[0], "email": pair[1]}) != key({"id": "a", "email": "b:c"})


def test_number_and_string_have_different_keys() -> None:
    """Values keep their type."""
    key = business_key("order", "order_id")
    assert len({key({"order_id": value}) for value in (1, "1", 1.5, True, [1], {"1": 1})}) == 6


def test_dotted_path_resolves_nested_field_unless_exact_name_exists() -> None:
    """`customer.id` is the id of the customer, unless the payload has a field with exactly this name."""
    key = entity_key("customer", "customer.id")
    assert key(ORDER) == "customer:c_1"
    assert key({**ORDER, "customer.id": "c_2"}) == "customer:c_2"
    assert key({"customer": MappingProxyType({"id": 3})}) == "customer:3"


@pytest.mark.parametrize("payload", [{}, {"customer": None}, {"customer": {"id": None}}, {"customer": "c_1"}])
@pytest.mark.parametrize("strategy", [business_key("k", "customer.id"), entity_key("k", "customer.id")])
def test_missing_field_is_rejected_by_name(strategy: Callable[..., str], payload: dict[str, Any]) -> None:
    """C2: two orders without a customer are not the same order."""
    with pytest.raises(BadRequestError, match=r"customer\.id is missing"):
        strategy(message(payload))


def test_message_and_outcome_can_be_created_with_their_types() -> None:
    """C30: what type checkers accept runs, and makes no difference."""
    assert Message[dict[str, int]]("m_1", body="{}") == Message("m_1", body="{}")
    assert Outcome[int](1) == Outcome(1)


def test_body_can_be_bytes() -> None:
    """C30: bytes with JSON are JSON; the hash of other bytes is that of the bytes."""
    text, encoded = (Message("m_1", body=body) for body in ('{"a": "ä", "b": 1}', '{"b":1,"a":"ä"}'.encode()))
    assert payload_hash("k")(text) == payload_hash("k")(encoded)
    assert business_key("k", "a")(text) == business_key("k", "a")(encoded)
    keys = {payload_hash("k")(Message("m_1", body=body)) for body in (b"\xff", b"\xfe", '"\\u00ff"')}
    assert len(keys) == 3
    with pytest.raises(BadRequestError, match="not valid JSON"):
        business_key("k", "a")(Message("m_1", body=b"\xff"))


@pytest.mark.parametrize("body", ["", "{", "NaN", '{"customer": Infinity}', "[" * 100_000])
def test_invalid_json_body_is_rejected(body: str) -> None:
    """Python's extensions of JSON, such as NaN, are rejected too."""
    with pytest.raises(BadRequestError, match="not valid JSON"):
        business_key("k", "customer")(Message("m_1", body=body))


def test_payload_that_is_not_an_object_is_rejected() -> None:
    """A list is valid JSON but has no fields."""
    with pytest.raises(BadRequestError, match="must be an object"):
        business_key("k", "customer")(message([1, 2]))


def test_request_id_is_read_from_attributes() -> None:
    """C2, 000: it is empty if the attribute is absent."""
    assert request_id()(message(ORDER, request_id="r_1")) == "r_1"
    assert request_id("trace")(message(ORDER, request_id="r_1")) == ""
    assert request_id()(message({"request_id": "not an attribute"})) == ""


def test_request_id_of_mapping_is_read_from_field() -> None:
    """004: for example, from an API Gateway event."""
    key = request_id("requestContext.requestId")
    assert key({"requestContext": {"requestId": "r_1"}}, None) == "r_1"
    assert key({"requestContext": {}}) == key({"requestContext": {"requestId": None}}) == ""
    with pytest.raises(BadRequestError, match="must be a string"):
        key({"requestContext": {"requestId": 1}})


@pytest.mark.parametrize(("value", "key"), [("2024-001", "invoice:2024-001"), (7, "invoice:7"), (0, "invoice:0")])
def test_entity_key_is_readable(value: object, key: str) -> None:
    """C2: `{type}:{entity id}`."""
    assert entity_key("invoice", "number")({"number": value}) == key


@pytest.mark.parametrize("value", [True, 1.5, "", [], {}])
def test_entity_id_must_be_non_empty_string_or_integer(value: object) -> None:
    """`invoice:` alone would be the same key for all."""
    with pytest.raises(BadRequestError, match="number must be"):
        entity_key("invoice", "number")({"number": value})


def test_payload_hash_ignores_key_order_and_white_space() -> None:
    """C2: every value and the kind make a difference."""
    key = payload_hash("report")
    one, other = Message("m_1", body='{"a": 1, "b": [2]}'), Message("m_2", body='{"b":[2],\n"a":1}')
    assert key(one) == key(other) == key({"a": 1, "b": [2]}) == key({"a": 1, "b": (2,)})
    assert len({key(one), payload_hash()(one), key({"a": 1, "b": [3]}), key({"a": 1}), key(message([1]))}) == 5


def test_strategies_do_not_share_keys() -> None:
    """A payload that looks like the canonical form of a business key has another hash."""
    inner = {"fields": {"a": 1}, "kind": "k"}
    assert business_key("k", "a")({"a": 1}) != payload_hash("k")(inner)


@pytest.mark.parametrize("value", [b"bytes", datetime(2026, 1, 1, tzinfo=UTC), float("nan"), {1: "a"}, {1, 2}])
def test_value_without_json_form_is_rejected(value: object) -> None:
    """A value without a canonical form cannot be compared with that of another sender."""
    with pytest.raises(BadRequestError, match="JSON values"):
        payload_hash()({"value": value})


def test_first_message_or_mapping_among_arguments_is_used() -> None:
    """It works for handlers, methods and keyword arguments."""
    key = entity_key("order", "order_id")
    assert key(object(), ORDER, {"order_id": "o_2"}) == key(context=None, event=ORDER) == "order:o_1"
    with pytest.raises(BadRequestError, match="requires an argument that is a Message or a mapping"):
        key("o_1", 5)


@pytest.mark.parametrize(
    "wiring",
    [
        lambda: business_key("order"),
        lambda: business_key("", "id"),
        lambda: business_key("order", ""),
        lambda: business_key(None, "id"),  # type: ignore[arg-type]
        lambda: entity_key("order", None),  # type: ignore[arg-type]
        lambda: request_id(""),
        lambda: payload_hash(None),  # type: ignore[arg-type]
    ],
)
def test_invalid_strategy_arguments_raise_config_error(wiring: Callable[[], object]) -> None:
    """C5: creating a strategy fails, not the first message."""
    with pytest.raises(ConfigError):
        wiring()
