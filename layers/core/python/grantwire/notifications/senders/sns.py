"""The sender that publishes to an SNS topic, with the notification id as attribute and FIFO deduplication id.

Only errors in the notification itself are permanent. A missing permission, a missing topic or a disabled key is
retried, because the notification can be sent once an operator has fixed the cause. So are throttling and service
errors.

Importing boto3 takes half a second, so it is imported only when this sender is built.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from grantwire.errors import RejectedError, RetryableError
from grantwire.notifications.senders.interface import Sender

if TYPE_CHECKING:
    from grantwire.notifications.store import Notification

_PERMANENT_ERROR_CODES = {"InvalidParameter", "InvalidParameterValue", "ParameterValueInvalid", "ValidationError"}


class SnsSender(Sender):
    """Publishes each notification to one topic."""

    def __init__(self, topic_arn: str, concurrency: int) -> None:
        import boto3  # noqa: PLC0415 - see the module's docstring
        from botocore.config import Config  # noqa: PLC0415

        # boto's default timeouts exceed the function's timeout, and the delivery worker does the retries.
        config = Config(
            connect_timeout=1, read_timeout=3, retries={"total_max_attempts": 1}, max_pool_connections=concurrency
        )
        self._concurrency = concurrency
        self._topic_arn = topic_arn
        self._client = boto3.client("sns", region_name=topic_arn.split(":")[3], config=config)

    @property
    def concurrency(self) -> int:
        """See `Sender`."""
        return self._concurrency

    def send(self, notification: Notification) -> str:
        """Publish the notification to the topic."""
        from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError  # noqa: PLC0415

        try:
            response = self._client.publish(
                TopicArn=self._topic_arn,
                Message=json.dumps(notification.body()),
                MessageAttributes=_attributes(notification),
                **self._fifo_parameters(notification),
            )
        except ParamValidationError as error:
            raise RejectedError(f"SNS does not accept the notification: {error}") from error
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            error_class = RejectedError if code in _PERMANENT_ERROR_CODES else RetryableError
            raise error_class(f"SNS responded with {code}") from error
        except BotoCoreError as error:
            raise RetryableError(f"no response from SNS: {error}") from error
        return f"SNS accepted it as message {response['MessageId']}"

    def _fifo_parameters(self, notification: Notification) -> dict[str, str]:
        """Return the parameters of a FIFO topic; the notifications of one entitlement form a message group."""
        if not self._topic_arn.endswith(".fifo"):
            return {}
        entitlement = json.dumps([notification.user_id, notification.stock_keeping_unit])
        return {
            "MessageDeduplicationId": str(notification.notification_id),
            # A hash, because the names may be longer than SNS allows, or contain other characters.
            "MessageGroupId": hashlib.sha256(entitlement.encode()).hexdigest(),
        }


def _attributes(notification: Notification) -> dict[str, Any]:
    text = {
        "idempotency_key": str(notification.notification_id),
        "event_type": notification.event_type,
        "trace_id": notification.trace_id,
    }
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in text.items() if value}
    return attributes | {"version": {"DataType": "Number", "StringValue": str(notification.version)}}
