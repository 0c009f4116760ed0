"""`make rebuild`: rebuild the read model behind the summaries, of the running stack or of the environment's."""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import TYPE_CHECKING, Any

from infra.cli import target
from infra.local.deployment.template import declared_parameters
from infra.local.layer import STATEMENT_TIMEOUT, product_code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grantwire.read_model.from_stream import StreamRebuildReport
    from infra.local.progress import Progress

SPOKEN = 10_000  # a line of progress for so many messages
BUDGET = "30d"


def rebuild(arguments: Sequence[str], progress: Progress) -> int:
    """Do what the options say, as the function rebuild_read_model does; 1 if it is not complete."""
    options = _parser().parse_args(arguments)
    environ = {
        "DATABASE_STATEMENT_TIMEOUT": STATEMENT_TIMEOUT,
        **target.environment(os.environ, needs_nats=options.source == "stream"),
        "ENTITLEMENT_NATS_STREAM": options.stream or declared_parameters()["EventStream"],
    }
    with product_code("`--help` explains the options; repeating is harmless."):
        from grantwire.read_model.commands import RebuildCommand  # noqa: PLC0415  # found only now
        from grantwire.runtime.rebuild import RebuildRuntime  # noqa: PLC0415

        order = RebuildCommand.parse(_event(options))
        with contextlib.closing(RebuildRuntime.build(environ)) as runtime:
            report = runtime.execute(order, on_batch=_telling(progress)).as_dict()
    (_say_record if order.source == "record" else _say_stream)(report, progress)
    return 0 if report.get("complete", True) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rebuild", description="Rebuild the read model, while events flow.", epilog=target.EPILOG
    )
    parser.add_argument(
        "--source",
        required=True,
        choices=("record", "stream"),
        help="record: compare with the system of record and mend every difference; stream: replay the events",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what differs, or what would be replayed")
    parser.add_argument("--from-sequence", type=int, metavar="N", help="go on with this message (stream)")
    parser.add_argument("--stream", metavar="NAME", help="its name, if it is not the template's (stream)")
    return parser


def _event(options: argparse.Namespace) -> dict[str, Any]:
    """What the function would be invoked with."""
    event = {"source": options.source, "dry_run": options.dry_run}
    if options.from_sequence is not None:
        event["from_sequence"] = options.from_sequence
    return event | ({"budget": BUDGET} if options.source == "stream" else {})


def _telling(progress: Progress) -> Callable[[StreamRebuildReport], None]:
    """Say now and then how far a replay has come."""
    told = 0

    def tell(report: StreamRebuildReport) -> None:
        nonlocal told
        if report.reached >= told + SPOKEN and not report.complete:
            told = report.reached
            progress.say(f"… up to {report.reached} of {report.last}")

    return tell


def _say_record(report: Mapping[str, Any], progress: Progress) -> None:
    differ = ", ".join(f"{count} {name}" for name, count in report["found"].items())
    progress.say(f"Rows that differ from the system of record: {differ}.")
    if report["dry_run"]:
        progress.say("Missing or behind is normal while events are on their way; the rest is not.")
        return
    progress.say(f"{report['mended']} mended, {report['removed']} removed.")
    if not report["complete"]:
        progress.say("Somebody holds, or keeps writing, rows that are wrong: find out who, and repeat.")


def _say_stream(report: Mapping[str, Any], progress: Progress) -> None:
    done = "would be replayed" if report["dry_run"] else f"replayed, {report['changed']} times a right was brought up"
    progress.say(f"{report['events']} events {done}; {report['skipped']} messages left out.")
    progress.say(f"From {report['from_sequence']} to {report['reached']} of {report['last_sequence']}.")
