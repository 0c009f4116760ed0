"""C2: what makes two messages, or two calls of a job, the same one."""

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

from grantwire_idempotency import Message, business_key, entity_key, message_id, payload_hash, request_id
from grantwire_idempotency.errors import BadRequestError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

ORDER = {"order_id": "o_1", "customer": {"id": "c_1", "email": "a@b.example"}, "amount": 5}


def message(payload: object, **attributes: str) -> Message:
    """A message with that payload."""
    return Message("m_1", "order.created", json.dumps(payload), attributes)


def test_the_message_s_own_id_is_the_key() -> None:
    """C2: the default of consumers."""
    assert message_id(message(ORDER)) == "m_1"


def test_a_plain_payload_is_known_by_its_id() -> None:
    """C2: an EventBridge event has one, plain or as Powertools wraps it."""
    event = {"id": "e_1", "detail": {}}
    assert message_id(event, object()) == message_id(EventBridgeEvent(event)) == "e_1"
    with pytest.raises(BadRequestError, match="id is missing"):
        message_id({"detail": {}})


def test_a_business_key_is_the_sha_256_of_its_fields() -> None:
    """C2, 000: written out here, because keys that change with a release make every message new."""
    canonical = '{"fields":{"customer.email":"a@b.example","order_id":"o_1"},"kind":"order"}'
    expected = hashlib.sha256(canonical.encode()).hexdigest()
    assert business_key("order", "order_id", "customer.email")(message(ORDER)) == expected
    assert business_key("order", "customer.email", "order_id")(ORDER) == expected


def test_a_business_key_looks_at_its_fields_alone() -> None:
    """000: the same event sent again by somebody else, in another message, with another amount."""
    key = business_key("order", "order_id")
    again = Message("m_2", body=json.dumps({"amount": 6, "order_id": "o_1"}))
    assert key(message(ORDER)) == key(again)
    assert key(message(ORDER)) != business_key("refund", "order_id")(message(ORDER))


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_no_two_sets_of_values_share_a_business_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    """C2: joining texts with a separator would let `a:b, c` and `a, b:c` meet."""
    key = business_key("user", "id", "email")
    same = key({"id": one[0], "email": one[1]}) == key({"id": other[0], "email": other[1]})
    assert same == (one == other)


@pytest.mark.parametrize("pair", [("a:b", "c"), ('a","b', "c"), ("", "a:bc"), ("a", "b:c\x00")])
def test_separators_inside_values_make_no_two_keys_meet(pair: tuple[str, str]) -> None:
    """C2: the pairs that a careless canonical form would confuse."""
    key = business_key("user", "id", "email")
    assert key({"id": pair[0], "email": pair[1]}) != key({"id": "a", "email": "b:c"})


def test_a_number_and_its_text_are_two_keys() -> None:
    """Values keep their type."""
    key = business_key("order", "order_id")
    assert len({key({"order_id": value}) for value in (1, "1", 1.5, True, [1], {"1": 1})}) == 6


def test_a_path_goes_into_the_payload_and_a_name_with_a_dot_comes_first() -> None:
    """`customer.id` is the customer's id, unless there is a field of that very name."""
    key = entity_key("customer", "customer.id")
    assert key(ORDER) == "customer:c_1"
    assert key({**ORDER, "customer.id": "c_2"}) == "customer:c_2"
    assert key({"customer": MappingProxyType({"id": 3})}) == "customer:3"


@pytest.mark.parametrize("payload", [{}, {"customer": None}, {"customer": {"id": None}}, {"customer": "c_1"}])
@pytest.mark.parametrize("strategy", [business_key("k", "customer.id"), entity_key("k", "customer.id")])
def test_a_missing_field_is_refused_by_name(strategy: Callable[..., str], payload: dict[str, Any]) -> None:
    """C2: two orders without a customer are not the same order."""
    with pytest.raises(BadRequestError, match=r"customer\.id is missing"):
        strategy(message(payload))


@pytest.mark.parametrize("body", ["", "{", "NaN", '{"customer": Infinity}', "[" * 100_000])
def test_a_body_that_is_not_json_is_refused(body: str) -> None:
    """And so is what only Python takes for JSON."""
    with pytest.raises(BadRequestError, match="not valid JSON"):
        business_key("k", "customer")(Message("m_1", body=body))


def test_a_payload_without_names_has_no_fields() -> None:
    """A list is JSON, but no object."""
    with pytest.raises(BadRequestError, match="must be an object"):
        business_key("k", "customer")(message([1, 2]))


def test_a_request_id_comes_from_the_attributes() -> None:
    """C2, 000: and is empty where there is none."""
    assert request_id()(message(ORDER, request_id="r_1")) == "r_1"
    assert request_id("trace")(message(ORDER, request_id="r_1")) == ""
    assert request_id()(message({"request_id": "not an attribute"})) == ""


def test_a_request_id_of_a_plain_event_is_a_field() -> None:
    """004: an API Gateway event, for instance."""
    key = request_id("requestContext.requestId")
    assert key({"requestContext": {"requestId": "r_1"}}, None) == "r_1"
    assert key({"requestContext": {}}) == key({"requestContext": {"requestId": None}}) == ""
    with pytest.raises(BadRequestError, match="must be a string"):
        key({"requestContext": {"requestId": 1}})


@pytest.mark.parametrize(("value", "key"), [("2024-001", "invoice:2024-001"), (7, "invoice:7"), (0, "invoice:0")])
def test_an_entity_key_can_be_read(value: object, key: str) -> None:
    """C2: `{type}:{entity id}`."""
    assert entity_key("invoice", "number")({"number": value}) == key


@pytest.mark.parametrize("value", [True, 1.5, "", [], {}])
def test_only_texts_and_whole_numbers_are_ids(value: object) -> None:
    """`invoice:` alone would be the same for all."""
    with pytest.raises(BadRequestError, match="number must be"):
        entity_key("invoice", "number")({"number": value})


def test_a_payload_hash_does_not_see_order_or_white_space() -> None:
    """C2: but every value, and the kind."""
    key = payload_hash("report")
    one, other = Message("m_1", body='{"a": 1, "b": [2]}'), Message("m_2", body='{"b":[2],\n"a":1}')
    assert key(one) == key(other) == key({"a": 1, "b": [2]}) == key({"a": 1, "b": (2,)})
    assert len({key(one), payload_hash()(one), key({"a": 1, "b": [3]}), key({"a": 1}), key(message([1]))}) == 5


def test_a_key_of_one_strategy_is_none_of_another() -> None:
    """A payload that looks like the canonical form of a business key is still a payload."""
    inner = {"fields": {"a": 1}, "kind": "k"}
    assert business_key("k", "a")({"a": 1}) != payload_hash("k")(inner)


@pytest.mark.parametrize("value", [b"bytes", datetime(2026, 1, 1, tzinfo=UTC), float("nan"), {1: "a"}, {1, 2}])
def test_only_json_makes_a_key(value: object) -> None:
    """What has no canonical form cannot be compared with what another sender wrote."""
    with pytest.raises(BadRequestError, match="JSON values"):
        payload_hash()({"value": value})


def test_the_subject_is_found_among_the_arguments() -> None:
    """Handlers, methods, and calls by name: the first message or mapping counts."""
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
def test_a_strategy_without_its_parts_is_an_error_at_once(wiring: Callable[[], object]) -> None:
    """C5: at wiring time, not with the first message."""
    with pytest.raises(ConfigError):
        wiring()
