"""The receiver of docs/webhooks.md, against the sender of the service (G5, D3)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from docs.examples.webhook_receiver import SCHEMA, receive
from grantwire.errors import RejectedError, RetryableError
from grantwire.events import EVENT_TYPES
from grantwire.notifications.senders.endpoint import FixedEndpoint, WebhookEndpoint
from grantwire.notifications.senders.exchange import ExchangeClient
from grantwire.notifications.senders.webhook import WebhookSender
from grantwire.tls import Certificates
from tests.support.workers.deliver_receiver import KEY, NEW_KEY, ReceivedRequest, Receiver, notification

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from grantwire.notifications.store import Notification

WRONG_KEY = "whsec_" + "A" * 40


class Shop:
    """A receiver on 127.0.0.1 that runs the example, and a sender to it; `alter` changes what the example gets."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.keys = [KEY]
        self.alter: Callable[[ReceivedRequest], tuple[bytes, dict[str, str]]] = lambda request: (
            request.content,
            dict(request.headers),
        )
        self.statuses: list[int] = []
        with self.connect() as database:
            database.executescript(SCHEMA)
        self.receiver = Receiver(self._respond)

    def connect(self) -> Any:
        """Open the database of the shop."""
        return closing(sqlite3.connect(self._path))

    def _respond(self, request: ReceivedRequest) -> int:
        body, headers = self.alter(request)
        with self.connect() as database:
            self.statuses.append(receive(body, headers, self.keys, database))
        return self.statuses[-1]

    def send(self, sent: Notification, keys: tuple[str, ...] = (KEY,), *, late: timedelta = timedelta(0)) -> None:
        """Send a notification that is signed with `keys`, by a clock that is late."""
        endpoint = FixedEndpoint(WebhookEndpoint(self.receiver.url, keys))
        client = ExchangeClient(3, 1, Certificates())
        with closing(WebhookSender(endpoint, client, 1, lambda: datetime.now(UTC) - late)) as sender:
            sender.send(sent)

    def owned(self) -> list[tuple[str, str, int, int]]:
        """Return the entitlements that the shop knows, without their times."""
        with self.connect() as database:
            return list(database.execute("SELECT user_id, sku, version, granted FROM owned"))

    def times(self) -> list[tuple[str | None, str | None]]:
        """Return start and end of the entitlements that the shop knows."""
        with self.connect() as database:
            return list(database.execute("SELECT starts_at, expires_at FROM owned"))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A shop that receives notifications."""
    shop = Shop(tmp_path / "shop.db")
    with shop.receiver:
        yield shop


def test_receiver_accepts_a_signed_notification_once(shop: Shop) -> None:
    """D3, G5: a repeat has the same id and a new signature, and has no second effect."""
    sent = notification()
    shop.send(sent, late=timedelta(seconds=10))
    shop.send(sent)
    assert shop.statuses == [204, 204]
    assert shop.owned() == [("u_é", "item1", 12, 1)]
    first, second = shop.receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == first.headers["Idempotency-Key"] == first.key
    assert int(second.headers["webhook-timestamp"]) - int(first.headers["webhook-timestamp"]) in {10, 11}
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]


def test_receiver_keeps_the_newest_version(shop: Shop) -> None:
    """D3: a notification that arrives late does not replace a newer one."""
    for version, event_type in ((12, "EntitlementGranted"), (14, "EntitlementRevoked"), (13, "EntitlementGranted")):
        sent = notification()
        shop.send(notification(payload={**sent.payload, "version": version, "event_type": event_type}))
    assert shop.owned() == [("u_é", "item1", 14, 0)]


@pytest.mark.parametrize("event_type", sorted(EVENT_TYPES))
def test_receiver_understands_every_event_type(shop: Shop, event_type: str) -> None:
    """D3, K4: a user has the entitlement unless it was revoked or has expired."""
    shop.send(notification(payload={**notification().payload, "event_type": event_type}))
    is_owned = event_type not in {"EntitlementRevoked", "EntitlementExpired"}
    assert shop.owned() == [("u_é", "item1", 12, is_owned)]


def test_receiver_keeps_the_times_of_the_newest_version(shop: Shop) -> None:
    """D3, K3: an extension that removes the end removes it for the receiver, too; an older end does not come back."""
    start, end = "2027-01-01T00:00:00.000000Z", "2027-02-01T00:00:00.000000Z"
    payload = notification().payload
    shop.send(notification(payload={**payload, "version": 12, "starts_at": start, "expires_at": end}))
    assert shop.times() == [(start, end)]
    shop.send(notification(payload={**payload, "version": 14, "event_type": "EntitlementExtended"}))
    shop.send(notification(payload={**payload, "version": 13, "expires_at": end}))
    assert shop.times() == [(None, None)]


def test_receiver_accepts_and_ignores_an_unknown_event_type(shop: Shop) -> None:
    """D3: a later release can send other types; a refusal would make them dead letters."""
    shop.send(notification(payload={**notification().payload, "event_type": "EntitlementPainted"}))
    assert (shop.statuses, shop.owned()) == ([204], [])


def test_receiver_refuses_a_wrong_key(shop: Shop) -> None:
    """G5: only the owner of a key can send notifications."""
    with pytest.raises(RetryableError, match="status 401"):
        shop.send(notification(), (WRONG_KEY,))
    assert shop.owned() == []


@pytest.mark.parametrize("late", [timedelta(minutes=6), timedelta(minutes=-6)])
def test_receiver_refuses_an_old_signature(shop: Shop, late: timedelta) -> None:
    """G5: a recorded request cannot be sent again later."""
    with pytest.raises(RetryableError, match="status 401"):
        shop.send(notification(), late=late)
    shop.send(notification(), late=timedelta(minutes=4))
    assert shop.statuses == [401, 204]


def test_receiver_refuses_a_changed_request(shop: Shop) -> None:
    """G5: body, id and time are signed; malformed headers are refused, too."""
    changes: list[Callable[[ReceivedRequest], tuple[bytes, dict[str, str]]]] = [
        lambda request: (request.content.replace(b'"version": 12', b'"version": 99'), dict(request.headers)),
        lambda request: (request.content + b"\xff", dict(request.headers)),
        lambda request: (request.content, {**request.headers, "webhook-id": "another"}),
        lambda request: (request.content, {**request.headers, "webhook-timestamp": _later(request)}),
        lambda request: (request.content, {**request.headers, "webhook-timestamp": "nan"}),
        lambda request: (request.content, {**request.headers, "webhook-signature": "v1"}),
        lambda request: (request.content, {**request.headers, "webhook-signature": "v1,é"}),
        lambda request: (request.content, {k: v for k, v in request.headers.items() if k != "webhook-signature"}),
    ]
    for change in changes:
        shop.alter = change
        with pytest.raises(RetryableError, match="status 401"):
            shop.send(notification())
    assert shop.owned() == []


def _later(request: ReceivedRequest) -> str:
    return str(int(request.headers["webhook-timestamp"]) + 1)


def test_key_is_rotated_without_a_refused_notification(shop: Shop) -> None:
    """G5: the sender signs with both keys until the receiver has changed to the new one."""
    rotation = [
        ([KEY], (KEY,)),
        ([KEY], (KEY, NEW_KEY)),
        ([KEY, NEW_KEY], (KEY, NEW_KEY)),
        ([NEW_KEY], (KEY, NEW_KEY)),
        ([NEW_KEY], (NEW_KEY,)),
    ]
    for accepted, signing in rotation:
        shop.keys = accepted
        shop.send(notification(), signing)
    assert shop.statuses == [204] * 5
    signatures = [request.headers["webhook-signature"].split() for request in shop.receiver.requests]
    assert [len(each) for each in signatures] == [1, 2, 2, 2, 1]
    assert all(signature.startswith("v1,") for each in signatures for signature in each)
    with pytest.raises(RetryableError, match="status 401"):
        shop.send(notification(), (KEY,))


def test_receiver_that_refuses_a_notification_gets_it_once(shop: Shop) -> None:
    """D3: any other 4xx is final."""
    shop.receiver.respond = lambda _: 422
    with pytest.raises(RejectedError, match="status 422"):
        shop.send(notification())
    assert len(shop.receiver.requests) == 1
