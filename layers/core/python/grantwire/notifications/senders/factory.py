"""The settings of the senders, and the functions that build a sender and its circuit breaker from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from grantwire.notifications.senders.log import LogSender
from grantwire.notifications.senders.sns import SnsSender
from grantwire.notifications.senders.webhook import WebhookSender
from grantwire.settings import duration, integer, setting
from grantwire_idempotency.circuit_breaker import CircuitBreaker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from grantwire.notifications.senders.interface import Sender

_TOPIC_ARN = re.compile(r"arn:[\w-]+:sns:[\w-]+:\d{12}:[\w-]{1,256}(\.fifo)?")


def _sender_kind(value: str) -> str:
    if value not in {"log", "webhook", "sns"}:
        raise ValueError(f"must be log, webhook or sns, not {value!r}")
    return value


def _webhook_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise ValueError("must be an http:// or https:// URL") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.fragment:
        raise ValueError("must be an http:// or https:// URL without credentials or fragment")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("must be percent-encoded")
    return value


def _topic_arn(value: str) -> str:
    if not _TOPIC_ARN.fullmatch(value):
        raise ValueError("must be the ARN of an SNS topic")
    return value


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """Settings of the sender, its receiver and its circuit breaker."""

    kind: str = setting("NOTIFICATION_SENDER", _sender_kind, default="log")
    # Secret, because the URL may contain a token.
    webhook_url: str | None = setting("NOTIFICATION_WEBHOOK_URL", _webhook_url, optional=True, secret=True)
    webhook_timeout: timedelta = setting("NOTIFICATION_WEBHOOK_TIMEOUT", duration(low="10ms", high="10s"), default="3s")
    webhook_concurrency: int = setting("NOTIFICATION_WEBHOOK_CONCURRENCY", integer(low=1, high=64), default="8")
    sns_topic_arn: str | None = setting("NOTIFICATION_SNS_TOPIC_ARN", _topic_arn, optional=True)
    sns_concurrency: int = setting("NOTIFICATION_SNS_CONCURRENCY", integer(low=1, high=64), default="8")
    breaker_failures: int = setting("NOTIFICATION_SENDER_BREAKER_FAILURES", integer(low=0, high=1000), default="20")
    breaker_rest: timedelta = setting(
        "NOTIFICATION_SENDER_BREAKER_REST", duration(low="100ms", high="1m"), default="5s"
    )

    def problems(self) -> Iterator[str]:
        """Yield an error if the setting for the receiver of the chosen sender is missing."""
        if self.kind == "webhook" and self.webhook_url is None:
            yield "NOTIFICATION_WEBHOOK_URL is missing: NOTIFICATION_SENDER=webhook requires it"
        if self.kind == "sns" and self.sns_topic_arn is None:
            yield "NOTIFICATION_SNS_TOPIC_ARN is missing: NOTIFICATION_SENDER=sns requires it"


def build_sender(settings: SenderSettings) -> Sender:
    """Build the sender that the settings name."""
    if settings.kind == "webhook" and settings.webhook_url is not None:
        return WebhookSender(settings.webhook_url, settings.webhook_timeout, settings.webhook_concurrency)
    if settings.kind == "sns" and settings.sns_topic_arn is not None:
        return SnsSender(settings.sns_topic_arn, settings.sns_concurrency)
    return LogSender()


def build_breaker(settings: SenderSettings) -> CircuitBreaker | None:
    """Build the circuit breaker of that sender; None if it is disabled, and for the log, which never fails."""
    if settings.kind == "log" or settings.breaker_failures == 0:
        return None
    return CircuitBreaker(f"sender {settings.kind}", failures=settings.breaker_failures, rest=settings.breaker_rest)
