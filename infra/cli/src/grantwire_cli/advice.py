"""What a person does about a problem of the status, and what works meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Advice(NamedTuple):
    """What still works while a problem lasts, the command to try, and the one for a local stack if it differs."""

    still_works: str
    to_do: str
    to_do_locally: str = ""


ADVICE = {
    "NATS_UNAVAILABLE": Advice(
        "Grants, revokes and reads. Events wait in the outbox and are published in order when NATS is back; "
        "no redrive is necessary.",
        "start NATS, or correct its address; then grantwire status --watch",
        "grantwire up; then grantwire status --watch",
    ),
    "SCHEMA_DIFFERS": Advice(
        "Most functions: a new schema is compatible with the code before it.",
        "sam remote invoke MigrateDatabaseFunction --stack-name NAME",
        "grantwire up",
    ),
    "WORKER_LATE": Advice(
        "Grants, revokes and reads. The work of this worker waits and is not lost.",
        "grantwire doctor --stack-name NAME (are the schedules enabled?), then the log of the worker",
        "grantwire doctor, then grantwire logs",
    ),
    "WORKER_FAILED": Advice(
        "Grants, revokes and reads. The work of this worker waits and is not lost.",
        "see the log of the worker; docs/runbook.md, Log messages",
        "grantwire logs; docs/runbook.md, Log messages",
    ),
    "EVENTS_OLD": Advice(
        "Grants, revokes and reads. Events keep their order.",
        "if NATS is unavailable, that is the cause; otherwise docs/runbook.md, OldestEventAge",
    ),
    "CONSUMER_LAG": Advice(
        "Grants, revokes and reads; events are published. Notifications and summaries are late.",
        "grantwire status --watch; docs/runbook.md, Consumer lag grows",
    ),
    "DEAD_LETTERS": Advice(
        "Other entitlements. Later events of the same entitlement wait behind a dead letter of the outbox.",
        "grantwire dead-letters groups",
    ),
    "LEASES_EXPIRED": Advice(
        "Everything. Another worker takes the work over.",
        "grantwire status --watch; if it stays, see the logs of the workers",
    ),
    "READ_MODEL_DIFFERS": Advice(
        "Entitlements, checks and notifications. Summaries may be wrong.",
        "grantwire read-model rebuild --reason 'rows were wrong'",
    ),
    "PARTITIONS_MISSING": Advice(
        "Everything. Rows of a month without a partition go to the default partition.",
        "invoke sweep_retention; docs/runbook.md, PartitionsMissing",
    ),
    "COMMANDS_FAILED": Advice(
        "Everything else. It does no harm to repeat a command.",
        "grantwire commands list --status FAILED",
    ),
}
UNKNOWN = Advice("See docs/runbook.md.", "docs/runbook.md")


def advise(code: str, *, local: bool) -> dict[str, str]:
    """Return what still works, and what to do, for the code of a problem."""
    advice = ADVICE.get(code, UNKNOWN)
    to_do = advice.to_do_locally if local and advice.to_do_locally else advice.to_do
    return {"code": code, "still_works": advice.still_works, "to_do": to_do}


def advise_all(report: Mapping[str, Any], *, local: bool) -> Iterator[dict[str, str]]:
    """Yield the advice for each code in the problems of a status, once, in their order."""
    for code in dict.fromkeys(problem["code"] for problem in report["problems"]):
        yield advise(code, local=local)
