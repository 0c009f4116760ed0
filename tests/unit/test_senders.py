"""D3: the log, SNS (moto's) and the choice between senders."""

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
from tests.support.workers.deliver_receiver import PAYLOAD, notification

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_the_log_says_which_but_not_whose(capsys: pytest.CaptureFixture[str]) -> None:
    """D3: one INFO line with ids and version, and nothing about a person."""
    told = notification()
    LogSender().send(told)
    (line,) = capsys.readouterr().out.splitlines()
    logged = json.loads(line)
    assert logged["level"] == "INFO"
    assert logged["notification_id"] == str(told.notification_id)
    assert (logged["event_id"], logged["event_type"]) == (PAYLOAD["event_id"], "EntitlementGranted")
    assert logged["version"] == 12
    assert "u_é" not in json.dumps(logged, ensure_ascii=False)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An AWS that is only in memory."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield


def subscribed(name: str, **attributes: str) -> tuple[str, str]:
    """A topic and the URL of a queue that gets its messages as they are."""
    sns, sqs = boto3.client("sns"), boto3.client("sqs")
    topic = sns.create_topic(Name=name, Attributes=attributes)["TopicArn"]
    fifo: dict[Any, str] = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    queue = sqs.create_queue(QueueName=name, Attributes=fifo)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"})
    return topic, queue


def received(queue: str) -> list[Any]:
    """What is in a queue."""
    answer = boto3.client("sqs").receive_message(
        QueueUrl=queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
    )
    return list(answer.get("Messages", []))


@pytest.mark.usefixtures("aws")
def test_a_topic_is_told_with_the_key_as_an_attribute() -> None:
    """D3: body as to a webhook; attributes to filter by."""
    topic, queue = subscribed("notifications")
    told = notification()
    SnsSender(topic, 1).send(told)
    (message,) = received(queue)
    assert json.loads(message["Body"]) == {"notification_id": str(told.notification_id), **PAYLOAD}
    attributes = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
    assert attributes == {
        "idempotency_key": str(told.notification_id),
        "event_type": "EntitlementGranted",
        "trace_id": "1-5759e988-bd862e3fe1be46a994272793",
        "version": "12",
    }


@pytest.mark.usefixtures("aws")
def test_a_fifo_topic_deduplicates_by_the_notification() -> None:
    """D3: the same notification twice is one message; those of one right are one group, however long its name."""
    topic, queue = subscribed("notifications.fifo", FifoTopic="true")
    sender = SnsSender(topic, 1)
    first, second = notification(user_id="ü" * 128), notification(user_id="ü" * 128)
    other = notification(stock_keeping_unit="item2", trace_id=None)
    for told in (first, first, second, other):
        sender.send(told)
    messages = received(queue)
    ids = [message["Attributes"]["MessageDeduplicationId"] for message in messages]
    assert ids == [str(told.notification_id) for told in (first, second, other)]
    groups = [message["Attributes"]["MessageGroupId"] for message in messages]
    assert groups[0] == groups[1] != groups[2]


@pytest.mark.usefixtures("aws")
def test_a_topic_that_is_missing_is_the_operator_s_to_mend() -> None:
    """D3: temporary, so that it heals."""
    with pytest.raises(RetryableError, match="NotFound"):
        SnsSender("arn:aws:sns:us-east-1:123456789012:missing", 1).send(notification())


@pytest.mark.parametrize(
    ("error", "verdict"),
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
def test_answers_of_sns_are_told_apart(error: str, verdict: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: only what is wrong with the notification itself is final."""
    sender = SnsSender("arn:aws:sns:us-east-1:123456789012:topic", 1)

    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": error, "Message": "no"}}, "Publish")

    monkeypatch.setattr(sender._client, "publish", refuse)  # noqa: SLF001 - moto has no such moods
    with pytest.raises(verdict, match=error):
        sender.send(notification())


@pytest.mark.usefixtures("aws")
def test_no_answer_from_sns_is_temporary(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: the network, or the credentials."""
    sender = SnsSender("arn:aws:sns:us-east-1:123456789012:topic", 1)

    def unreachable(**_: Any) -> None:
        raise EndpointConnectionError(endpoint_url="https://sns")

    monkeypatch.setattr(sender._client, "publish", unreachable)  # noqa: SLF001 - as above
    with pytest.raises(RetryableError, match="no answer"):
        sender.send(notification())


def test_the_log_is_the_default() -> None:
    """D3: nothing to configure."""
    assert isinstance(build_sender(load(SenderSettings, {})), LogSender)


@pytest.mark.usefixtures("aws")
def test_the_settings_choose_the_sender() -> None:
    """D3: with its concurrency."""
    web = build_sender(
        load(SenderSettings, {"NOTIFICATION_SENDER": "webhook", "NOTIFICATION_WEBHOOK_URL": "https://x.example/y?z=1"})
    )
    assert isinstance(web, WebhookSender)
    assert web.concurrency == 8
    arn = "arn:aws:sns:eu-west-1:123456789012:topic.fifo"
    sns = build_sender(load(SenderSettings, {"NOTIFICATION_SENDER": "sns", "NOTIFICATION_SNS_TOPIC_ARN": arn}))
    assert isinstance(sns, SnsSender)
    assert sns._client.meta.region_name == "eu-west-1"  # noqa: SLF001 - where it would go


@pytest.mark.parametrize(
    ("environ", "problems"),
    [
        ({"NOTIFICATION_SENDER": "pigeon"}, ["NOTIFICATION_SENDER must be log, webhook or sns"]),
        ({"NOTIFICATION_SENDER": "webhook"}, ["NOTIFICATION_WEBHOOK_URL is missing"]),
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
def test_every_problem_of_the_settings_is_named_at_once(environ: dict[str, str], problems: list[str]) -> None:
    """A bad, missing or contradictory value stops the function before it begins."""
    with pytest.raises(ConfigError) as caught:
        load(SenderSettings, environ)
    assert len(caught.value.problems) == len(problems)
    for found, expected in zip(caught.value.problems, problems, strict=True):
        assert expected in found


@pytest.mark.parametrize(
    "url",
    ["x", "//x/y", "http://", "http://user:secret@x/", "http://x/#y", "http://x:port/", "http://x/é", "http://x/a b"],
)
def test_an_address_that_cannot_be_called_is_refused(url: str) -> None:
    """And never shown: it may carry the receiver's secret."""
    with pytest.raises(ConfigError, match="NOTIFICATION_WEBHOOK_URL must be") as caught:
        load(SenderSettings, {"NOTIFICATION_WEBHOOK_URL": url})
    assert "secret" not in str(caught.value)
