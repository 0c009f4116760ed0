"""K6: a batch executes each item as if it was sent alone, and with `atomic` all of them or none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import BATCHES, CALLER, EXTENSIONS, GRANTS, REVOKES, Client, event, item
from tests.support.times import history, in_hours, pass_time

if TYPE_CHECKING:
    from tests.integration.conftest import Rows
    from tests.support.client import Response

TABLES = ("entitlements", "outbox_events", "entitlement_audit", "idempotency_keys", "key_conflicts")
ROUTES = {"grant": GRANTS, "revoke": REVOKES, "extend": EXTENSIONS}


def results(response: Response) -> list[dict[str, Any]]:
    """Return the results of a batch."""
    listed: list[dict[str, Any]] = response.json["results"]
    return listed


def refusal(status_code: int, code: str, message: str, *, replayed: bool = False) -> dict[str, Any]:
    """Return the result of a refused item."""
    return {"status_code": status_code, "replayed": replayed, "response": {"code": code, "message": message}}


def contents(rows: Rows) -> dict[str, list[dict[str, Any]]]:
    """Return all rows that changes write."""
    return {table: rows.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall() for table in TABLES}  # noqa: S608


def send_alone(client: Client, sent: dict[str, Any]) -> Response:
    """Send an item as a single request."""
    fields = {name: value for name, value in sent.items() if name not in {"operation", "idempotency_key"}}
    return client.change(ROUTES[sent["operation"]], sent["idempotency_key"], **fields)


def test_results_are_in_the_order_of_the_items(client: Client, rows: Rows) -> None:
    """K6: grants, a revoke and an extension, applied one after the other; each has its event and its audit row."""
    response = client.batch(
        item("k1", user_id="b"),
        item("k2", user_id="a", expires_at=in_hours(1)),
        item("k3", "revoke", user_id="b"),
        item("k4", "extend", user_id="a", expires_at=None),
        item("k5", user_id="b"),
        item("k6", user_id="c", starts_at=in_hours(1)),
    )
    assert response.status == 200
    assert [(each["status_code"], each["replayed"]) for each in results(response)] == [(200, False)] * 6
    assert [
        (each["response"]["user_id"], each["response"]["status"], each["response"]["version"])
        for each in results(response)
    ] == [("b", "ACTIVE", 1), ("a", "ACTIVE", 1), ("b", "REVOKED", 2), ("a", "ACTIVE", 2), ("b", "ACTIVE", 3),
          ("c", "SCHEDULED", 1)]  # fmt: skip
    assert history(rows) == [
        ("GRANT", 1, "ACTIVE"),
        ("EXTEND", 2, "ACTIVE"),
        ("GRANT", 1, "ACTIVE"),
        ("REVOKE", 2, "REVOKED"),
        ("GRANT", 3, "ACTIVE"),
        ("GRANT", 1, "ACTIVE"),
    ]
    audited = rows.execute("SELECT transaction_id::text AS id, trace_id FROM entitlement_audit").fetchall()
    assert len(audited) == 6
    assert len({(row["id"], row["trace_id"]) for row in audited}) == 1


SENT = [
    item("k1", expires_at="2099-01-01T00:00:00Z", starts_at="2098-01-01T00:00:00Z", user_id='quote " ☕'),
    item("k2", "extend", expires_at="2099-01-01T00:00:00+09:00"),
    item("k3", "revoke"),
    item("k4", "revoke", user_id="never granted"),
    item("k5", user_id="already ACTIVE"),
]


def test_single_request_replays_an_item(client: Client) -> None:
    """K6, I1, I7: for each operation, a success or a stored refusal, byte for byte."""
    client.grant("k0")
    client.grant("k00", user_id="already ACTIVE")
    response = client.batch(*SENT)
    assert [each["status_code"] for each in results(response)] == [200, 200, 200, 409, 409]
    for sent, result in zip(SENT, results(response), strict=True):
        alone = send_alone(client, sent)
        assert (alone.status, alone.replayed) == (result["status_code"], True)
        assert f'"replayed":false,"response":{alone.body}}}' in response.body


def test_item_replays_a_single_request(client: Client, rows: Rows) -> None:
    """K6, I1, I7: for each operation, a success or a stored refusal, byte for byte; nothing is written."""
    client.grant("k0")
    client.grant("k00", user_id="already ACTIVE")
    alone = [send_alone(client, sent) for sent in SENT]
    assert [response.status for response in alone] == [200, 200, 200, 409, 409]
    before = contents(rows)
    expected = ",".join(
        f'{{"status_code":{response.status},"replayed":true,"response":{response.body}}}' for response in alone
    )
    assert client.batch(*SENT).body == f'{{"results":[{expected}]}}'
    assert contents(rows) == before


def test_repeated_batch_is_replayed_in_another_order_too(client: Client, rows: Rows) -> None:
    """K6: the key of an item does not depend on its batch."""
    sent = [item(f"k{n}", user_id=f"u{n}") for n in range(5)]
    first = client.batch(*sent)
    again = client.batch(*reversed(sent))
    assert [each["response"] for each in results(again)] == [each["response"] for each in reversed(results(first))]
    assert all(each["replayed"] for each in results(again))
    assert len(rows.execute("SELECT FROM outbox_events").fetchall()) == 5


def test_second_of_two_equal_items_is_replayed(client: Client, rows: Rows) -> None:
    """K6, I1: also a refusal; the same key with another request is a key conflict, and another route another key."""
    first, equal, refused, equally, conflict, other_route = results(
        client.batch(
            item("k1"), item("k1"), item("k2"), item("k2"), item("k1", reason="gift"), item("k1", "revoke")
        )
    )  # fmt: skip
    assert (first["replayed"], equal["replayed"], first["response"]) == (False, True, equal["response"])
    assert refused == refusal(409, "ENTITLEMENT_STATE_CONFLICT", "already ACTIVE")
    assert equally == refused | {"replayed": True}
    assert conflict["response"]["code"] == "IDEMPOTENCY_KEY_CONFLICT"
    assert other_route["response"]["status"] == "REVOKED"
    assert len(rows.execute("SELECT FROM outbox_events").fetchall()) == 2


def test_key_of_another_operation_or_caller_is_another_key(client: Client) -> None:
    """I7: the scope of a key is the caller and the route of its operation."""
    client.grant("k1", caller="another", user_id="another's")
    client.revoke("k1", user_id="never granted")
    (granted,) = results(client.batch(item("k1")))
    assert (granted["status_code"], granted["replayed"]) == (200, False)


def test_key_conflict_has_the_text_of_the_single_route_and_is_audited(client: Client, rows: Rows) -> None:
    """K6, I2, G6: in an item against a single request and the other way round; the others are executed."""
    client.grant("k1")
    alone = client.grant("k1", reason="gift")
    conflict, applied = results(client.batch(item("k1", reason="present"), item("k2", user_id="u2")))
    assert conflict == {"status_code": 409, "replayed": False, "response": alone.json}
    assert applied["status_code"] == 200
    assert client.grant("k2", user_id="u3").body == alone.body
    (counted,) = rows.execute("SELECT conflicts FROM key_conflicts ORDER BY conflicts DESC LIMIT 1").fetchall()
    assert counted["conflicts"] == 2


def test_invalid_items_do_not_affect_the_others(client: Client, rows: Rows) -> None:
    """K6, I3: they have the position of their item, and their keys stay free."""
    invalid = [item("k1", user_id=""), item("k2", "delete"), item("k3", expires_at="2020-01-01T00:00:00Z")]
    sent = [invalid[0], item("k4", user_id="u4"), invalid[1], invalid[2], item("k5", user_id="u5")]
    listed = results(client.batch(*sent))
    assert [each["status_code"] for each in listed] == [400, 200, 400, 400, 200]
    assert [listed[n]["response"]["user_id"] for n in (1, 4)] == ["u4", "u5"]
    assert [listed[n]["response"]["message"].split()[0] for n in (0, 2, 3)] == ["user_id", "operation", "expires_at"]
    stored = rows.execute("SELECT idempotency_key FROM idempotency_keys ORDER BY 1").fetchall()
    assert [row["idempotency_key"] for row in stored] == ["k4", "k5"]
    assert [client.grant(f"k{n}", user_id=f"u{n}").status for n in (1, 2, 3)] == [200] * 3


def test_batch_of_full_size_is_executed(client: Client, rows: Rows) -> None:
    """K6: 100 items with the longest fields, in a body of up to 256 KiB; one byte more is a 413."""
    sent = [
        item(
            f"{n:0255}",
            user_id=f"{n:03}" + "日" * 125,
            stock_keeping_unit="語" * 128,
            purchase_id="ü" * 128,
            reason="r" * 64,
        )
        for n in range(100)
    ]
    body = json.dumps({"items": sent}, ensure_ascii=False)
    limit = 256 * 1024
    padding = " " * (limit - len(body.encode()))
    too_large = client.send(event("POST", BATCHES, body=f"{body}{padding} "))
    assert (too_large.status, too_large.code) == (413, "TOO_LARGE")
    response = client.send(event("POST", BATCHES, body=body + padding))
    assert [each["status_code"] for each in results(response)] == [200] * 100
    assert [each["response"]["user_id"] for each in results(response)] == [each["user_id"] for each in sent]
    assert len(rows.execute("SELECT FROM outbox_events").fetchall()) == 100


@pytest.mark.parametrize(
    ("authorizer", "status"), [(None, 401), ({"principalId": "tests", "scopes": "entitlements:read"}, 403)]
)
def test_caller_needs_the_scope_of_a_change(
    client: Client, rows: Rows, authorizer: dict[str, str] | None, status: int
) -> None:
    """S4: entitlements:write."""
    context = {"requestId": "r", "authorizer": authorizer}
    sent = event("POST", BATCHES, body=json.dumps({"items": [item("k1")]}), requestContext=context)
    assert client.send(sent).status == status
    assert contents(rows) == {table: [] for table in TABLES}


def test_items_belong_to_the_caller_and_have_its_address(client: Client, rows: Rows) -> None:
    """I7, G7: in the keys and in the audit."""
    context = {"requestId": "r", "authorizer": CALLER | {"principalId": "shop"}, "identity": {"sourceIp": "192.0.2.7"}}
    body = json.dumps({"items": [item("k1"), item("k2", "revoke", user_id="u2")]})
    client.send(event("POST", BATCHES, body=body, requestContext=context))
    audited = rows.execute("SELECT caller, host(source_address) AS address FROM entitlement_audit").fetchall()
    assert audited == [{"caller": "shop", "address": "192.0.2.7"}] * 2
    keys = rows.execute("SELECT caller, route FROM idempotency_keys ORDER BY route").fetchall()
    assert [tuple(row.values()) for row in keys] == [("shop", f"POST {GRANTS}"), ("shop", f"POST {REVOKES}")]


def test_end_that_no_worker_has_recorded_is_recorded_first(client: Client, rows: Rows) -> None:
    """K4, K6: an item meets an ended entitlement as a single request does."""
    client.grant("k1", expires_at=in_hours(1))
    pass_time(rows, 2)
    refused, granted = results(client.batch(item("k2", "revoke"), item("k3")))
    assert refused["response"]["message"] == "already EXPIRED"
    assert granted["response"]["version"] == 3


# Items that an atomic batch refuses, with their results. "held" is ACTIVE and was granted with the key "used".
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "state conflict": (
        item("k", user_id="held"),
        refusal(409, "ENTITLEMENT_STATE_CONFLICT", "already ACTIVE"),
    ),
    "state conflict with an item before": (
        item("k", user_id="u0"),
        refusal(409, "ENTITLEMENT_STATE_CONFLICT", "already ACTIVE"),
    ),
    "key conflict": (
        item("used", user_id="u9"),
        refusal(409, "IDEMPOTENCY_KEY_CONFLICT", "this Idempotency-Key was used for another request; use a new key"),
    ),
    "replayed refusal": (
        item("refused", "revoke", user_id="u9"),
        refusal(409, "ENTITLEMENT_STATE_CONFLICT", "not granted", replayed=True),
    ),
    "bad request": (item("k", user_id=""), refusal(400, "BAD_REQUEST", "user_id must not be empty")),
    "end in the past": (
        item("k", user_id="u9", expires_at="2020-01-01T00:00:00Z"),
        refusal(400, "BAD_REQUEST", "expires_at must be in the future"),
    ),
    "in progress": (
        item("running", user_id="u9"),
        refusal(409, "REQUEST_IN_PROGRESS", "a request with this Idempotency-Key is still running"),
    ),
}


@pytest.mark.parametrize(
    ("case", "position"), [*((case, 2) for case in REFUSED), ("key conflict", 0), ("in progress", 4)]
)
def test_refused_item_of_an_atomic_batch_prevents_all(database_url: str, rows: Rows, case: str, position: int) -> None:
    """K6: nothing is changed or stored, no key, event, audit row or conflict count; the keys can be sent again."""
    refused, expected = REFUSED[case]
    others = [item(f"k{n}", user_id=f"u{n}") for n in range(4)]
    sent = [*others[:position], refused, *others[position:]]
    with Client(database_url, IDEMPOTENCY_LOCK_WAIT="20ms") as client:
        client.grant("used", user_id="held")
        client.revoke("refused", user_id="u9")
        before = contents(rows)
        with rows.transaction():
            rows.execute("SELECT idempotency_begin('c', 'r', 'running', 'h', 1000)")
            response = client.batch(*sent, atomic=True)
        message = f"items[{position}] was refused, nothing was applied"
        assert (response.status, response.code, response.json["message"]) == (409, "NOT_APPLIED", message)
        not_applied = refusal(409, "NOT_APPLIED", message)
        assert results(response) == [expected if n == position else not_applied for n in range(5)]
        assert contents(rows) == before
        retried = client.batch(*others, atomic=True)
        assert (retried.status, [each["replayed"] for each in results(retried)]) == (200, [False] * 4)


def test_atomic_batch_without_refusals_is_applied_and_replayed(client: Client, rows: Rows) -> None:
    """K6: all applied, some replayed, all replayed; each has status 200."""
    sent = [item(f"k{n}", user_id=f"u{n}") for n in range(4)]
    client.grant("k1", user_id="u1")
    first = client.batch(*sent, atomic=True)
    assert first.status == 200
    assert [each["replayed"] for each in results(first)] == [False, True, False, False]
    again = client.batch(*sent, atomic=True)
    assert (again.status, [each["replayed"] for each in results(again)]) == (200, [True] * 4)
    assert [each["response"] for each in results(again)] == [each["response"] for each in results(first)]
    assert len(rows.execute("SELECT FROM outbox_events").fetchall()) == 4


def test_atomic_batch_does_not_keep_an_end_that_it_recorded(client: Client, rows: Rows) -> None:
    """K6, K4: the end of an entitlement is recorded by the next change, once."""
    client.grant("k1", expires_at=in_hours(1))
    pass_time(rows, 2)
    assert client.batch(item("k2"), item("k3"), atomic=True).status == 409
    assert history(rows) == [("GRANT", 1, "ACTIVE")]
    assert client.grant("k2").json["version"] == 3


def test_batch_without_atomic_keeps_what_was_applied(client: Client, rows: Rows) -> None:
    """K6, I3: refusals are stored, and do not affect the items before and after them."""
    sent = [item("k1"), item("k2"), item("k3", user_id="u3")]
    for fields in ({}, {"atomic": False}):
        assert [each["status_code"] for each in results(client.batch(*sent, **fields))] == [200, 409, 200]
    outcomes = rows.execute("SELECT outcome FROM entitlement_audit ORDER BY occurred_at, outcome").fetchall()
    assert sorted(row["outcome"] for row in outcomes) == ["APPLIED", "APPLIED", "ENTITLEMENT_STATE_CONFLICT"]


@pytest.mark.parametrize("atomic", [False, True])
def test_fault_in_one_item_rolls_back_all(client: Client, rows: Rows, *, atomic: bool) -> None:
    """E6: an internal error stores nothing, so that the same batch can run again."""
    rows.execute("ALTER TABLE outbox_events ADD CONSTRAINT broken CHECK (aggregate_key <> 'u2/item1')")
    sent = [item(f"k{n}", user_id=f"u{n}") for n in range(4)]
    response = client.batch(*sent, atomic=atomic)
    assert (response.status, response.code) == (500, "INTERNAL")
    assert contents(rows) == {table: [] for table in TABLES}
    rows.execute("ALTER TABLE outbox_events DROP CONSTRAINT broken")
    assert [each["status_code"] for each in results(client.batch(*sent, atomic=atomic))] == [200] * 4
