"""The settings of the senders, and the functions that build a sender and its circuit breaker from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.notifications.senders.endpoint import (
    FixedEndpoint,
    SecretEndpoint,
    WebhookEndpoint,
    parse_keys,
    parse_webhook_url,
)
from grantwire.notifications.senders.log import LogSender
from grantwire.notifications.senders.sns import SnsSender
from grantwire.settings import duration, flag, integer, setting, text
from grantwire.tls import Certificates, certificates
from grantwire_idempotency import CircuitBreaker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from grantwire.notifications.senders.interface import Sender

_TOPIC_ARN = re.compile(r"arn:[\w-]+:sns:[\w-]+:\d{12}:[\w-]{1,256}(\.fifo)?")


def _sender_kind(value: str) -> str:
    if value not in {"log", "webhook", "sns"}:
        raise ValueError(f"must be log, webhook or sns, not {value!r}")
    return value


def _topic_arn(value: str) -> str:
    if not _TOPIC_ARN.fullmatch(value):
        raise ValueError("must be the ARN of an SNS topic")
    return value


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """Settings of the sender, its receiver and its circuit breaker."""

    kind: str = setting("NOTIFICATION_SENDER", _sender_kind, default="log")
    webhook_secret_arn: str | None = setting("NOTIFICATION_WEBHOOK_SECRET_ARN", text, optional=True)
    # For a local stack. The URL is secret, too, because it may contain a token.
    webhook_url: str | None = setting("NOTIFICATION_WEBHOOK_URL", parse_webhook_url, optional=True, secret=True)
    webhook_keys: tuple[str, ...] | None = setting("NOTIFICATION_WEBHOOK_KEYS", parse_keys, optional=True, secret=True)
    plaintext_allowed: bool = setting("PLAINTEXT_ALLOWED", flag, default="false")
    webhook_tls_ca: Certificates = setting("NOTIFICATION_WEBHOOK_TLS_CA", certificates, default="system")
    webhook_timeout: timedelta = setting("NOTIFICATION_WEBHOOK_TIMEOUT", duration(low="10ms", high="10s"), default="3s")
    webhook_concurrency: int = setting("NOTIFICATION_WEBHOOK_CONCURRENCY", integer(low=1, high=64), default="8")
    sns_topic_arn: str | None = setting("NOTIFICATION_SNS_TOPIC_ARN", _topic_arn, optional=True)
    sns_concurrency: int = setting("NOTIFICATION_SNS_CONCURRENCY", integer(low=1, high=64), default="8")
    breaker_failures: int = setting("NOTIFICATION_SENDER_BREAKER_FAILURES", integer(low=0, high=1000), default="20")
    breaker_rest: timedelta = setting(
        "NOTIFICATION_SENDER_BREAKER_REST", duration(low="100ms", high="1m"), default="5s"
    )

    def problems(self) -> Iterator[str]:
        """Yield a problem for each missing or contradictory setting of the chosen sender."""
        if self.kind == "webhook":
            yield from self._webhook_problems()
        if self.kind == "sns" and self.sns_topic_arn is None:
            yield "NOTIFICATION_SNS_TOPIC_ARN is missing: NOTIFICATION_SENDER=sns requires it"

    def _webhook_problems(self) -> Iterator[str]:
        if (self.webhook_url is None) == (self.webhook_secret_arn is None):
            yield (
                "exactly one of NOTIFICATION_WEBHOOK_SECRET_ARN and NOTIFICATION_WEBHOOK_URL must be set: "
                "NOTIFICATION_SENDER=webhook requires it"
            )
        if (self.webhook_url is None) != (self.webhook_keys is None):
            yield "NOTIFICATION_WEBHOOK_KEYS must be set if and only if NOTIFICATION_WEBHOOK_URL is"
        if self.webhook_url is not None and not self.plaintext_allowed:
            yield (
                "NOTIFICATION_WEBHOOK_URL needs PLAINTEXT_ALLOWED=true; use it only on the same machine, and otherwise "
                "NOTIFICATION_WEBHOOK_SECRET_ARN"
            )
        if not self.plaintext_allowed and self.webhook_tls_ca.is_empty:
            yield "NOTIFICATION_WEBHOOK_TLS_CA must name a PEM file: no system certificates were found"


def build_sender(settings: SenderSettings) -> Sender:
    """Build the sender that the settings name."""
    if settings.kind == "webhook":
        return _build_webhook_sender(settings)
    if settings.kind == "sns" and settings.sns_topic_arn is not None:
        return SnsSender(settings.sns_topic_arn, settings.sns_concurrency)
    return LogSender()


def _build_webhook_sender(settings: SenderSettings) -> Sender:
    # Imported only if it is used, because it loads http.client and ssl.
    from grantwire.notifications.senders.exchange import ExchangeClient  # noqa: PLC0415
    from grantwire.notifications.senders.webhook import EndpointSource, WebhookSender  # noqa: PLC0415

    source: EndpointSource
    if settings.webhook_secret_arn is not None:
        source = SecretEndpoint(settings.webhook_secret_arn, plaintext_allowed=settings.plaintext_allowed)
    else:
        source = FixedEndpoint(WebhookEndpoint(settings.webhook_url or "", settings.webhook_keys or ()))
    client = ExchangeClient(
        settings.webhook_timeout.total_seconds(), settings.webhook_concurrency, settings.webhook_tls_ca
    )
    return WebhookSender(source, client, settings.webhook_concurrency)


def build_breaker(settings: SenderSettings) -> CircuitBreaker | None:
    """Build the circuit breaker of that sender; None if it is disabled, and for the log, which never fails."""
    if settings.kind == "log" or settings.breaker_failures == 0:
        return None
    return CircuitBreaker(f"sender {settings.kind}", failures=settings.breaker_failures, rest=settings.breaker_rest)
