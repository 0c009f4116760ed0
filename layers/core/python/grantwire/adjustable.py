"""The variables that the list GRANTWIRE_SETTINGS can set, which is the parameter `Settings` of the template.

These are the variables that the template does not set by itself. So the list can name no credential and allow no
exception from TLS. Each function gets the whole list and takes the variables that it reads. A name that is not here
stops every function. A test compares these names with the settings, the template and docs/settings.md.
"""

from __future__ import annotations

# Of the relay, of delivery, and of the commands of operators.
_LEASE_PREFIXES = ("ENTITLEMENT_OUTBOX_", "NOTIFICATION_DELIVERY_", "OPERATOR_COMMAND_")
_LEASE_NAMES = (
    "POLL_INTERVAL",
    "BATCH_SIZE",
    "LEASE",
    "MAX_ATTEMPTS",
    "BACKOFF_BASE",
    "BACKOFF_MAX",
    "BACKOFF_MIN",
    "BACKOFF_JITTER_MIN",
    "BACKOFF_JITTER_MAX",
)

ADJUSTABLE = frozenset(prefix + name for prefix in _LEASE_PREFIXES for name in _LEASE_NAMES) | frozenset(
    (
        "CHANGES_MAX_WAITING",
        "CHANGES_MAX_WAITING_PER_CLIENT",
        "CLIENT_BURST_LIMIT",
        "CLIENT_RATE_LIMIT",
        "DATABASE_CONNECT_TIMEOUT",
        "DATABASE_LISTEN_HOST",
        "DATABASE_STARTUP_OPTIONS",
        "DATABASE_TLS_CA",
        "ENTITLEMENT_CHECK_CACHE",
        "ENTITLEMENT_EXPIRY_BATCH_SIZE",
        "ENTITLEMENT_EXPIRY_NOTICE",
        "ENTITLEMENT_EXPIRY_POLL_INTERVAL",
        "ENTITLEMENT_GRACE",
        "ENTITLEMENT_NATS_DUPLICATE_WINDOW",
        "ENTITLEMENT_NATS_MAX_AGE",
        "ENTITLEMENT_OUTBOX_CONFIRM_BACKOFF",
        "ENTITLEMENT_OUTBOX_CONFIRM_GRACE",
        "ENTITLEMENT_OUTBOX_CONFIRM_INTERVAL",
        "ENTITLEMENT_OUTBOX_RETENTION",
        "ENTITLEMENT_OUTBOX_WAKEUP",
        "IDEMPOTENCY_LOCKS_RETENTION",
        "IDEMPOTENCY_LOCK_WAIT",
        "IDEMPOTENCY_MESSAGES_RETENTION",
        "IDEMPOTENCY_TTL",
        "NATS_CONNECT_TIMEOUT",
        "NATS_PUBLISH_TIMEOUT",
        "NATS_TLS_CA",
        "NOTIFICATION_DEAD_LETTERS_RETENTION",
        "NOTIFICATION_DELIVERY_WAKEUP",
        "NOTIFICATION_NATS_ACK_WAIT",
        "NOTIFICATION_NATS_ADVISORY_DURABLE",
        "NOTIFICATION_NATS_ADVISORY_MAX_AGE",
        "NOTIFICATION_NATS_DURABLE",
        "NOTIFICATION_NATS_FETCH",
        "NOTIFICATION_NATS_MAX_DELIVER",
        "NOTIFICATION_NATS_TERMINATED_ADVISORY_DURABLE",
        "NOTIFICATION_NATS_TERMINATED_ADVISORY_MAX_AGE",
        "NOTIFICATION_NATS_TERMINATED_ADVISORY_STREAM",
        "NOTIFICATION_RETENTION_ENABLED",
        "NOTIFICATION_SENDER_BREAKER_FAILURES",
        "NOTIFICATION_SENDER_BREAKER_REST",
        "NOTIFICATION_SNS_CONCURRENCY",
        "NOTIFICATION_WEBHOOK_CONCURRENCY",
        "NOTIFICATION_WEBHOOK_TIMEOUT",
        "NOTIFICATION_WEBHOOK_TLS_CA",
        "RETENTION_BATCH_SIZE",
        "STATUS_CLIENT_EXPIRY_DAYS",
        "STATUS_LOSS_SECONDS",
    )
)
