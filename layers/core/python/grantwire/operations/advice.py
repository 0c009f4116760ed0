"""What still works while a problem of the status lasts, and what a person does about it (W4).

The command and the console show these texts. Each section of docs/runbook.md that a text names has more.
"""

from __future__ import annotations

from typing import NamedTuple


class Advice(NamedTuple):
    """What still works while a problem lasts, and what to do."""

    still_works: str
    to_do: str


_CHANGES = "Grants, revokes and reads."
_CHECK_WORKERS = "grantwire doctor (are the schedules enabled?), then its log (local stack: grantwire logs)."
ADVICE = {
    "NATS_UNAVAILABLE": Advice(
        f"{_CHANGES} Events wait in the outbox and are published in order when NATS is back; no redrive is necessary. "
        "Notifications that are recorded are still sent.",
        "Start NATS, or correct its address (local stack: grantwire up). Then grantwire status --watch.",
    ),
    "STREAM_MISSING": Advice(
        f"{_CHANGES} Events wait in the outbox, and are published when the streams are there again; those that were "
        "lost with a stream are published again.",
        "sam remote invoke ConfigureStreamsFunction --stack-name NAME (local stack: grantwire up). Then find out who "
        "deleted or changed it.",
    ),
    "RECEIVER_UNAVAILABLE": Advice(
        f"{_CHANGES} Events are published, and other readers of the stream get them. Notifications wait and are sent "
        "when the receiver responds again; a wait behind an open circuit costs no attempt.",
        "Repair the receiver, or correct its address and keys. It is tried again by itself. Runbook: Receiver down.",
    ),
    "SCHEMA_DIFFERS": Advice(
        "Most functions: a new schema is compatible with the code before it.",
        "sam remote invoke MigrateDatabaseFunction --stack-name NAME (local stack: grantwire up).",
    ),
    "WORKER_LATE": Advice(f"{_CHANGES} The work of this worker waits and is not lost.", _CHECK_WORKERS),
    "WORKER_FAILED": Advice(
        f"{_CHANGES} The work of this worker waits and is not lost.",
        "Its log has the traceback (local stack: grantwire logs). Runbook: FunctionErrors.",
    ),
    "WORKER_DEGRADED": Advice(
        f"{_CHANGES} The work of this worker waits and is not lost. It continues by itself.",
        "Repair what its last error names: a server, a permission or a secret. Runbook: DependencyUnavailable.",
    ),
    "TRANSACTION_OPEN": Advice(
        "Other changes. Their events are published as usual, but the change feed waits for this transaction, too.",
        "Find its session and end it, if it does not end by itself: grantwire doctor. Runbook: Slow or blocked.",
    ),
    "TIMES_OVERDUE": Advice(
        "Every read: it decides by the clock, not by what is recorded. Only the events of these starts and ends are "
        "late.",
        "If expire_entitlements runs, its log says why. Runbook: EntitlementTimesFailed.",
    ),
    "EVENTS_OLD": Advice(
        f"{_CHANGES} Events keep their order.",
        "If NATS is unavailable, that is the cause. Otherwise see relay_outbox among the workers. Runbook: "
        "OldestEventAge.",
    ),
    "EVENTS_UNCONFIRMED": Advice(
        f"{_CHANGES} Events are published. What the stream loses is published again without a person.",
        "See bridge_events among the workers, and the consumer lag. Runbook: EventsUnconfirmed.",
    ),
    "NOTIFICATIONS_OVERDUE": Advice(
        f"{_CHANGES} Events are published, and the read model is current. Notifications are tried again by themselves.",
        "The last error is that of most notifications: repair the receiver, or its address and keys. If there is no "
        "error, see deliver_notifications among the workers. Runbook: Receiver down.",
    ),
    "CONSUMER_LAG": Advice(
        f"{_CHANGES} Events are published. Notifications and summaries are late.",
        "grantwire status --watch: does the lag shrink? Runbook: Consumer lag grows.",
    ),
    "EVENTS_LOST": Advice(
        "Everything. What was lost is published again by itself, in the order of the versions.",
        "Nothing to repair here. Find out why NATS lost what it had acknowledged. Runbook: EventsLost.",
    ),
    "STREAM_HISTORY_LOST": Advice(
        "Everything. The events of the range are published again, as far as the outbox still has them.",
        "Tell the other readers of the stream: events may appear again, or after later versions. Runbook: "
        "StreamHistoryLost.",
    ),
    "EVENTS_TOO_OLD": Advice(
        "Everything else. These events are not published again by themselves, because each could take effect twice.",
        "grantwire dead-letters list --kind outbox. Redrive each with --force, or discard it. Runbook: EventsTooOld.",
    ),
    "EVENTS_UNCHECKED": Advice(
        f"{_CHANGES} Events flow. If the stream lost events, it is not noticed meanwhile.",
        "The log of relay_outbox says why it cannot compare. Runbook: EventsUnconfirmed.",
    ),
    "DEAD_LETTERS": Advice(
        "Other entitlements. Later events of the same entitlement wait behind a dead letter of the outbox.",
        "grantwire dead-letters groups. Remove the cause, then redrive. Discard only what must never be delivered.",
    ),
    "LEASES_EXPIRED": Advice(
        "Everything. Another worker takes the work over; nothing is done twice.",
        "grantwire status --watch. If it stays, a worker is killed again and again (see the logs of the workers), or a "
        "session holds the rows: grantwire doctor names it. Runbook: LeasesExpired.",
    ),
    "READ_MODEL_DIFFERS": Advice(
        "Entitlements, checks and notifications. Summaries may be wrong.",
        "grantwire read-model verify --reason 'rows were wrong', and rebuild it if the difference stays.",
    ),
    "PARTITIONS_MISSING": Advice(
        "Everything. Rows of a month without a partition go to the default partition.",
        "See sweep_retention, which creates the partitions. Runbook: PartitionsMissing.",
    ),
    "COMMANDS_FAILED": Advice(
        "Everything else. It does no harm to repeat a command.",
        "grantwire commands list --status FAILED: read why, then repeat them.",
    ),
    "CLIENT_EXPIRES": Advice(
        "Everything, until the end of the client. Then it gets 403, and so do the clients below it.",
        "grantwire clients rotate ID --expires-in 90d, and give its owner the new token within the overlap. Or revoke "
        "it, if nobody needs it. Runbook: Clients and tokens.",
    ),
}
