"""Tells an SNS topic. The notification's id travels as an attribute, and on a FIFO topic as the deduplication id.

Only what is wrong with the notification itself is final. A missing permission, a topic that is not there, a disabled
key are the operator's to mend, and the notification is as good as before once that is done; so they are temporary, as
throttling and faults of the service are.

boto3 costs half a second, so only a function that uses this sender imports it.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from grantwire.errors import RejectedError, RetryableError

if TYPE_CHECKING:
    from grantwire.notifications.store import Notification

_PERMANENT = {"InvalidParameter", "InvalidParameterValue", "ParameterValueInvalid", "ValidationError"}


class SnsSender:
    """Publishes each notification to one topic."""

    def __init__(self, topic_arn: str, concurrency: int) -> None:
        import boto3  # noqa: PLC0415 - see the module's docstring
        from botocore.config import Config  # noqa: PLC0415

        # boto's own limits are longer than a function lives, and the lease mechanism does the retrying.
        limits = Config(
            connect_timeout=1, read_timeout=3, retries={"total_max_attempts": 1}, max_pool_connections=concurrency
        )
        self.concurrency = concurrency
        self._topic_arn = topic_arn
        self._client = boto3.client("sns", region_name=topic_arn.split(":")[3], config=limits)

    def send(self, notification: Notification) -> None:
        """Publish it."""
        from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError  # noqa: PLC0415

        try:
            self._client.publish(
                TopicArn=self._topic_arn,
                Message=json.dumps(notification.body()),
                MessageAttributes=_attributes(notification),
                **self._order(notification),
            )
        except ParamValidationError as error:
            raise RejectedError(f"SNS cannot take it: {error}") from error
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            raise (RejectedError if code in _PERMANENT else RetryableError)(f"SNS answered {code}") from error
        except BotoCoreError as error:
            raise RetryableError(f"no answer from SNS: {error}") from error

    def _order(self, notification: Notification) -> dict[str, str]:
        """What a FIFO topic wants to know: notifications of one right belong together."""
        if not self._topic_arn.endswith(".fifo"):
            return {}
        right = json.dumps([notification.user_id, notification.stock_keeping_unit])
        return {
            "MessageDeduplicationId": str(notification.notification_id),
            # The names may be longer, and of other characters, than SNS takes.
            "MessageGroupId": hashlib.sha256(right.encode()).hexdigest(),
        }


def _attributes(notification: Notification) -> dict[str, Any]:
    text = {
        "idempotency_key": str(notification.notification_id),
        "event_type": notification.event_type,
        "trace_id": notification.trace_id,
    }
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in text.items() if value}
    return attributes | {"version": {"DataType": "Number", "StringValue": str(notification.version)}}
