"""G5: address and keys of a webhook come from Secrets Manager and a changed secret needs no restart."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.errors import ConfigError, RetryableError
from grantwire.notifications.senders import SenderSettings, build_sender
from grantwire.settings import load
from grantwire.wiring.workers.deliver_notifications import DeliveryRuntime
from grantwire.workers.budget import Budget
from tests.integration.test_delivery_claims import add, notifications
from tests.support.concurrency import run_concurrently
from tests.support.plaintext import PLAINTEXT
from tests.support.servers import newest_postgres
from tests.support.workers.deliver_receiver import KEY, NEW_KEY, ReceivedRequest, Receiver, notification

if TYPE_CHECKING:
    from grantwire.notifications.senders import Sender
    from tests.integration.conftest import Rows
    from tests.support.secrets_manager import FakeSecretsManager


class Secret:
    """A secret with a URL and keys."""

    def __init__(self, secrets_manager: FakeSecretsManager, name: str, **fields: Any) -> None:
        self._manager = secrets_manager
        self.arn = secrets_manager.store(name, json.dumps(fields))

    def store(self, **fields: Any) -> None:
        """Replace the content."""
        self._manager.secrets[self.arn] = json.dumps(fields)

    @property
    def environ(self) -> dict[str, str]:
        """The settings of a sender with this secret."""
        return {
            **PLAINTEXT,
            "NOTIFICATION_SENDER": "webhook",
            "NOTIFICATION_WEBHOOK_SECRET_ARN": self.arn,
            "NOTIFICATION_DELIVERY_WAKEUP": "false",
        }

    def sender(self) -> closing[Sender]:
        """Return a sender that has read the secret."""
        sender = build_sender(load(SenderSettings, self.environ))
        sender.prepare()
        return closing(sender)


def accept(signatures: int) -> Any:
    """Return a receiver's function that accepts only requests with this number of signatures."""

    def respond(request: ReceivedRequest) -> int:
        return 204 if len(request.headers["webhook-signature"].split()) == signatures else 401

    return respond


def test_receiver_that_refuses_the_key_gets_the_new_one(
    secrets_manager: FakeSecretsManager, capsys: pytest.CaptureFixture[str]
) -> None:
    """G5: 401 refreshes the secret once, and the notification is sent again at once with the same id."""
    with Receiver(accept(1)) as receiver:
        secret = Secret(secrets_manager, "rotated", url=receiver.url, keys=[KEY])
        with secret.sender() as sender:
            sender.send(notification())
            receiver.respond = accept(2)
            secret.store(url=receiver.url, keys=[KEY, NEW_KEY])
            sender.send(notification())
            sender.send(notification())
    assert [len(request.headers["webhook-signature"].split()) for request in receiver.requests] == [1, 1, 2, 2]
    assert receiver.keys()[1] == receiver.keys()[2]
    output = capsys.readouterr().out
    assert [json.loads(line)["message"] for line in output.splitlines()] == ["webhook secret refreshed"]
    assert not any(text in output for text in (KEY, NEW_KEY, receiver.url))


def test_concurrent_refusals_read_the_secret_once(secrets_manager: FakeSecretsManager) -> None:
    """G5: six threads are refused at the same moment, and each sends its notification again."""
    arrived = threading.Barrier(6)

    def refuse_together(request: ReceivedRequest) -> int:
        status: int = accept(2)(request)
        if status == 401:
            arrived.wait(timeout=30)
        return status

    with Receiver(accept(1)) as receiver:
        secret = Secret(secrets_manager, "concurrent", url=receiver.url, keys=[KEY])
        with secret.sender() as sender:
            receiver.respond = refuse_together
            secret.store(url=receiver.url, keys=[KEY, NEW_KEY])
            run_concurrently(6, lambda _: sender.send(notification()))
    assert len(receiver.requests) == 12


def test_unchanged_secret_is_not_tried_again(secrets_manager: FakeSecretsManager) -> None:
    """G5: a receiver that refuses the current keys gets one request for each attempt."""
    with (
        Receiver(lambda _: 401) as receiver,
        Secret(secrets_manager, "unchanged", url=receiver.url, keys=[KEY]).sender() as sender,
    ):
        for _ in range(2):
            with pytest.raises(RetryableError, match="status 401"):
                sender.send(notification())
    assert len(receiver.requests) == 2


def test_new_address_is_used_with_a_new_connection(secrets_manager: FakeSecretsManager) -> None:
    """G5: a kept connection to the old address is not used for the new one."""
    with Receiver() as old, Receiver() as new:
        secret = Secret(secrets_manager, "moved", url=old.url, keys=[KEY])
        with secret.sender() as sender:
            sender.send(notification())
            old.respond = lambda _: 401
            secret.store(url=new.url, keys=[KEY])
            sender.send(notification())
            sender.send(notification())
    assert (len(old.requests), len(new.requests)) == (2, 2)


def run_delivery(database_url: str, environ: dict[str, str]) -> dict[str, Any]:
    """Deliver until idle."""
    runtime = DeliveryRuntime.build({"DATABASE_URL": database_url, **environ})
    try:
        return runtime.run(Budget(float("inf"), until_idle=True))
    finally:
        runtime.close()


@newest_postgres
def test_nothing_is_claimed_without_a_usable_secret(
    secrets_manager: FakeSecretsManager, database_url: str, rows: Rows
) -> None:
    """G5: a secret that is missing or invalid costs no notification an attempt, and the worker reports it."""
    add(rows)
    with Receiver() as receiver:
        missing = {**PLAINTEXT, "NOTIFICATION_SENDER": "webhook", "NOTIFICATION_WEBHOOK_SECRET_ARN": "arn:missing"}
        with pytest.raises(RetryableError):
            run_delivery(database_url, missing)
        invalid = Secret(secrets_manager, "invalid", url=receiver.url, keys=[])
        with pytest.raises(ConfigError, match="the webhook secret must be JSON"):
            run_delivery(database_url, invalid.environ)
        plaintext = Secret(secrets_manager, "plaintext", url=receiver.url, keys=[KEY])
        with pytest.raises(ConfigError, match="https://"):
            build_sender(load(SenderSettings, {**plaintext.environ, "PLAINTEXT_ALLOWED": "false"})).prepare()
        (row,) = notifications(rows)
        assert (row["status"], row["attempt_count"], row["locked_by"]) == ("PENDING", 0, None)
        assert receiver.requests == []
        valid = Secret(secrets_manager, "valid", url=receiver.url, keys=[KEY, NEW_KEY])
        assert run_delivery(database_url, valid.environ)["sent"] == 1
    (request,) = receiver.requests
    assert len(request.headers["webhook-signature"].split()) == 2
