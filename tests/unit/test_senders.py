"""D3: the log sender, the SNS sender (with moto) and the selection of a sender."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws

from grantwire.errors import ConfigError, RejectedError, RetryableError
from grantwire.notifications.senders import SenderSettings, build_sender
from grantwire.notifications.senders.log import LogSender
from grantwire.notifications.senders.sns import SnsSender
from grantwire.notifications.senders.webhook import WebhookSender
from grantwire.settings import load
from tests.support.plaintext import PLAINTEXT
from tests.support.workers.deliver_receiver import KEY, PAYLOAD, notification

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_log_sender_writes_ids_without_personal_data(capsys: pytest.CaptureFixture[str]) -> None:
    """D3: one INFO line with ids and version, and nothing about the user."""
    sent = notification()
    LogSender().send(sent)
    (line,) = capsys.readouterr().out.splitlines()
    logged = json.loads(line)
    assert logged["level"] == "INFO"
    assert logged["notification_id"] == str(sent.notification_id)
    assert (logged["event_id"], logged["event_type"]) == (PAYLOAD["event_id"], "EntitlementGranted")
    assert logged["version"] == 12
    assert "u_é" not in json.dumps(logged, ensure_ascii=False)


TIMES = {"starts_at": "2027-01-01T00:00:00.000000Z", "expires_at": "2027-01-31T00:00:00.000000Z"}


@pytest.mark.parametrize("names", [(), ("expires_at",), ("starts_at", "expires_at")])
def test_log_sender_writes_the_times_where_set(capsys: pytest.CaptureFixture[str], names: tuple[str, ...]) -> None:
    """D3, K3: with the names of the event."""
    times = {name: TIMES[name] for name in names}
    LogSender().send(notification(payload={**PAYLOAD, **times}))
    logged = json.loads(capsys.readouterr().out)
    assert {name: logged[name] for name in TIMES if name in logged} == times


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """AWS in memory."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield


def create_topic_with_queue(name: str, **attributes: str) -> tuple[str, str]:
    """Create a topic and a queue that gets its raw messages; return the topic's ARN and the queue's URL."""
    sns, sqs = boto3.client("sns"), boto3.client("sqs")
    topic = sns.create_topic(Name=name, Attributes=attributes)["TopicArn"]
    fifo: dict[Any, str] = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    queue = sqs.create_queue(QueueName=name, Attributes=fifo)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"})
    return topic, queue


def receive_messages(queue: str) -> list[Any]:
    """Return the messages in a queue."""
    response = boto3.client("sqs").receive_message(
        QueueUrl=queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
    )
    return list(response.get("Messages", []))


@pytest.mark.usefixtures("aws")
def test_sns_sender_publishes_key_as_attribute() -> None:
    """D3: the same body as a webhook, and attributes to filter by."""
    topic, queue = create_topic_with_queue("notifications")
    sent = notification()
    SnsSender(topic, 1).send(sent)
    (message,) = receive_messages(queue)
    assert json.loads(message["Body"]) == {"notification_id": str(sent.notification_id), **PAYLOAD}
    attributes = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
    assert attributes == {
        "idempotency_key": str(sent.notification_id),
        "event_type": "EntitlementGranted",
        "trace_id": "1-5759e988-bd862e3fe1be46a994272793",
        "version": "12",
    }


@pytest.mark.usefixtures("aws")
def test_sns_message_has_the_times_of_the_entitlement() -> None:
    """D3, K3: with the names of the event."""
    topic, queue = create_topic_with_queue("notifications")
    SnsSender(topic, 1).send(notification(payload={**PAYLOAD, **TIMES}))
    (message,) = receive_messages(queue)
    assert TIMES.items() <= json.loads(message["Body"]).items()


@pytest.mark.usefixtures("aws")
def test_fifo_topic_deduplicates_by_notification_id() -> None:
    """D3: a repeated notification is one message; an entitlement is a message group, however long its names."""
    topic, queue = create_topic_with_queue("notifications.fifo", FifoTopic="true")
    sender = SnsSender(topic, 1)
    first, second = notification(user_id="ü" * 128), notification(user_id="ü" * 128)
    other = notification(stock_keeping_unit="item2", trace_id=None)
    for sent in (first, first, second, other):
        sender.send(sent)
    messages = receive_messages(queue)
    ids = [message["Attributes"]["MessageDeduplicationId"] for message in messages]
    assert ids == [str(sent.notification_id) for sent in (first, second, other)]
    groups = [message["Attributes"]["MessageGroupId"] for message in messages]
    assert groups[0] == groups[1] != groups[2]


@pytest.mark.usefixtures("aws")
def test_missing_topic_is_retryable() -> None:
    """D3: the notification is sent once an operator has created the topic."""
    with pytest.raises(RetryableError, match="NotFound"):
        SnsSender("arn:aws:sns:us-east-1:123456789012:missing", 1).send(notification())


@pytest.mark.parametrize(
    ("error", "error_class"),
    [
        ("Throttling", RetryableError),
        ("ThrottledException", RetryableError),
        ("InternalError", RetryableError),
        ("AuthorizationError", RetryableError),
        ("KMSDisabled", RetryableError),
        ("InvalidParameter", RejectedError),
        ("InvalidParameterValue", RejectedError),
    ],
)
@pytest.mark.usefixtures("aws")
def test_sns_errors_are_retryable_or_permanent(
    error: str, error_class: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3: only errors in the notification itself are permanent."""
    sender = SnsSender("arn:aws:sns:us-east-1:123456789012:topic", 1)

    def raise_client_error(**_: Any) -> None:
        raise ClientError({"Error": {"Code": error, "Message": "no"}}, "Publish")

    monkeypatch.setattr(sender._client, "publish", raise_client_error)  # noqa: SLF001 - moto cannot simulate these errors
    with pytest.raises(error_class, match=error):
        sender.send(notification())


@pytest.mark.usefixtures("aws")
def test_missing_response_from_sns_is_retryable(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: for example a network error or missing credentials."""
    sender = SnsSender("arn:aws:sns:us-east-1:123456789012:topic", 1)

    def raise_connection_error(**_: Any) -> None:
        raise EndpointConnectionError(endpoint_url="https://sns")

    monkeypatch.setattr(sender._client, "publish", raise_connection_error)  # noqa: SLF001 - as above
    with pytest.raises(RetryableError, match="no response"):
        sender.send(notification())


def test_log_sender_is_the_default() -> None:
    """D3: without any setting."""
    assert isinstance(build_sender(load(SenderSettings, {})), LogSender)


@pytest.mark.usefixtures("aws")
def test_settings_select_the_sender() -> None:
    """D3: with its concurrency."""
    environ = {"NOTIFICATION_WEBHOOK_URL": "https://x.example/y?z=1", "NOTIFICATION_WEBHOOK_KEYS": KEY}
    web = build_sender(load(SenderSettings, {**PLAINTEXT, "NOTIFICATION_SENDER": "webhook", **environ}))
    assert isinstance(web, WebhookSender)
    assert web.concurrency == 8
    arn = "arn:aws:sns:eu-west-1:123456789012:topic.fifo"
    sns = build_sender(load(SenderSettings, {"NOTIFICATION_SENDER": "sns", "NOTIFICATION_SNS_TOPIC_ARN": arn}))
    assert isinstance(sns, SnsSender)
    assert sns._client.meta.region_name == "eu-west-1"  # noqa: SLF001 - the region of the requests


@pytest.mark.parametrize(
    ("environ", "problems"),
    [
        ({"NOTIFICATION_SENDER": "pigeon"}, ["NOTIFICATION_SENDER must be log, webhook or sns"]),
        ({"NOTIFICATION_SENDER": "webhook"}, ["NOTIFICATION_SENDER=webhook requires it"]),
        ({"NOTIFICATION_SENDER": "sns"}, ["NOTIFICATION_SNS_TOPIC_ARN is missing"]),
        (
            {
                "NOTIFICATION_SENDER": "carrier",
                "NOTIFICATION_WEBHOOK_URL": "ftp://x",
                "NOTIFICATION_WEBHOOK_TIMEOUT": "1h",
                "NOTIFICATION_SNS_TOPIC_ARN": "topic",
            },
            [
                "NOTIFICATION_SENDER",
                "NOTIFICATION_WEBHOOK_URL",
                "NOTIFICATION_WEBHOOK_TIMEOUT",
                "NOTIFICATION_SNS_TOPIC_ARN",
            ],
        ),
    ],
)
def test_all_problems_of_settings_are_reported_together(environ: dict[str, str], problems: list[str]) -> None:
    """An invalid, missing or contradictory value stops the function before it starts."""
    with pytest.raises(ConfigError) as caught:
        load(SenderSettings, environ)
    assert len(caught.value.problems) == len(problems)
    for problem, expected in zip(caught.value.problems, problems, strict=True):
        assert expected in problem


@pytest.mark.parametrize(
    "url",
    ["x", "//x/y", "http://", "http://user:secret@x/", "http://x/#y", "http://x:port/", "http://x/é", "http://x/a b"],
)
def test_invalid_webhook_url_is_refused(url: str) -> None:
    """The error never contains the URL, because it may contain a secret."""
    with pytest.raises(ConfigError, match="NOTIFICATION_WEBHOOK_URL must be") as caught:
        load(SenderSettings, {"NOTIFICATION_WEBHOOK_URL": url})
    assert "secret" not in str(caught.value)
