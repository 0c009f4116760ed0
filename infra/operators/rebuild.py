"""`make rebuild`: rebuild the read model of the running stack, or of the one in the environment."""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import TYPE_CHECKING, Any

from grantwire_cli.wording import count_of
from infra.local.deployment.template import declared_parameters
from infra.local.layer import STATEMENT_TIMEOUT, product_code
from infra.local.system.operator import add_operator_options, command_source
from infra.operators import target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grantwire.read_model.from_stream import StreamRebuildReport
    from infra.local.progress import Progress

EXAMPLES = """
examples:
  make rebuild ARGS="--source record --dry-run"
  make rebuild ARGS="--source record --reason 'the read model was restored'"
  make rebuild ARGS="--source stream --from-sequence 1000 --reason 'the bridge skipped events'"

exit codes:
  0  done
  1  the rebuild is not complete, or the command failed
"""
PROGRESS_INTERVAL = 10_000  # messages between two progress lines
BUDGET = "30d"  # no Lambda timeout ends a command


def rebuild(arguments: Sequence[str], progress: Progress) -> int:
    """Execute the command like the function rebuild_read_model; return 1 if the rebuild is not complete.

    Raises CommandError if the options are not valid or a server is not available.
    """
    options = _parser().parse_args(arguments)
    environ = {
        "DATABASE_STATEMENT_TIMEOUT": STATEMENT_TIMEOUT,
        **target.environment(os.environ, needs_nats=options.source == "stream"),
        "ENTITLEMENT_NATS_STREAM": options.stream or declared_parameters()["EventStream"],
    }
    with product_code("See --help for the options. It is safe to repeat the command."):
        from grantwire.read_model.commands import RebuildCommand  # noqa: PLC0415  # importable only here
        from grantwire.wiring.tasks.rebuild_read_model import RebuildRuntime  # noqa: PLC0415

        command = RebuildCommand.parse(_event(options))
        with contextlib.closing(RebuildRuntime.build(environ)) as runtime:
            report = runtime.execute(command, command_source("rebuild"), _progress_printer(progress)).as_dict()
    print_report = _print_record_report if command.source == "record" else _print_stream_report
    print_report(report, progress)
    return 0 if report.get("complete", True) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rebuild",
        description="Rebuild the read model. The workers can keep running.",
        epilog=target.EPILOG + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--source",
        required=True,
        choices=("record", "stream"),
        help="record: compare with the system of record and repair every difference; "
        "stream: project the events of the stream again",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be done and change nothing")
    parser.add_argument("--from-sequence", type=int, metavar="N", help="start with this message of the stream")
    parser.add_argument("--stream", metavar="NAME", help="the name of the stream (default: that of template.yaml)")
    add_operator_options(parser)
    return parser


def _event(options: argparse.Namespace) -> dict[str, Any]:
    """Return the event that the function would be invoked with."""
    event = {"source": options.source, "dry_run": options.dry_run, "actor": options.actor}
    if options.reason is not None:
        event["reason"] = options.reason
    if options.from_sequence is not None:
        event["from_sequence"] = options.from_sequence
    return event | ({"budget": BUDGET} if options.source == "stream" else {})


def _progress_printer(progress: Progress) -> Callable[[StreamRebuildReport], None]:
    """Return a callback that prints a line for every PROGRESS_INTERVAL messages."""
    last_printed = 0

    def print_progress(report: StreamRebuildReport) -> None:
        nonlocal last_printed
        if report.reached >= last_printed + PROGRESS_INTERVAL and not report.complete:
            last_printed = report.reached
            progress.print_line(f"… message {report.reached} of {report.last}")

    return print_progress


def _print_record_report(report: Mapping[str, Any], progress: Progress) -> None:
    differences = ", ".join(f"{count} {name}" for name, count in report["found"].items())
    progress.print_line(f"Rows that differ from the system of record: {differences}.")
    if report["dry_run"]:
        progress.print_line("Missing or behind is normal while events are being delivered; the others are not.")
        return
    progress.print_line(f"{report['repaired']} repaired, {report['removed']} removed.")
    if not report["complete"]:
        progress.print_line(
            "Some rows are still wrong, because another session locks or changes them. "
            "Find that session (pg_stat_activity), then repeat the command."
        )


def _print_stream_report(report: Mapping[str, Any], progress: Progress) -> None:
    changed = f"projected, which changed the read model {count_of(report['changed'], 'time')}"
    outcome = "would be projected" if report["dry_run"] else changed
    skipped = f"{count_of(report['skipped'], 'message')} skipped, {report['not_genuine']} of them not genuine"
    progress.print_line(f"{count_of(report['events'], 'event')} {outcome}, {skipped}.")
    progress.print_line(f"Messages {report['from_sequence']} to {report['reached']} of {report['last_sequence']}.")
