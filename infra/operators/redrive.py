"""`make redrive`: list, redrive or discard dead letters of the running stack, or of the one in the environment."""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import TYPE_CHECKING, Any

from infra.local.layer import product_code
from infra.local.system.operator import add_operator_options, command_source
from infra.operators import target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grantwire.dead_letters.dead_letter import Report
    from infra.local.progress import Progress

EXAMPLES = """
examples:
  make redrive ARGS="--kind outbox --list"
  make redrive ARGS="--kind outbox --all --reason 'NATS is back' --dry-run"
  make redrive ARGS="--kind nats --ids 42 --discard --reason 'test message'"

exit codes:
  0  done
  1  a selected dead letter was skipped, or the command failed
"""
FILTERS = ("event_type", "user_id", "error", "older_than", "newer_than")
MAX_PRINTED_IDS = 20


def redrive(arguments: Sequence[str], progress: Progress) -> int:
    """Execute the command like the function redrive_dead_letters; return 1 if a selected dead letter was skipped.

    Raises CommandError if the options are not valid or a server is not available.
    """
    options = _parser().parse_args(arguments)
    environ = target.environment(os.environ, needs_nats=options.kind == "nats")
    with product_code("See --help for the options. It is safe to repeat the command."):
        from grantwire.dead_letters.commands import DeadLetterCommand  # noqa: PLC0415  # importable only here
        from grantwire.wiring.tasks.redrive_dead_letters import RedriveRuntime  # noqa: PLC0415

        command = DeadLetterCommand.parse(_event(options))
        with contextlib.closing(RedriveRuntime.build(environ)) as runtime:
            report = runtime.dead_letters.execute(
                command, command_source("redrive"), on_batch=lambda so_far: _print_progress(so_far, progress)
            )
    _print_result(report, progress)
    return 1 if report.skipped else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="redrive",
        description="List, redrive or discard dead letters. Without --list and --discard, redrive them.",
        epilog=target.EPILOG + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--kind", required=True, choices=("outbox", "notification", "nats"), help="the kind of dead letters"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="list them and change nothing")
    action.add_argument("--discard", action="store_true", help="close them without trying again")
    parser.add_argument("--ids", nargs="+", metavar="ID", help="select by id")
    parser.add_argument("--all", action="store_true", help="select all open ones")
    parser.add_argument("--event-type", metavar="TYPE", help="select by event type")
    parser.add_argument("--user-id", metavar="USER", help="select by user (outbox, notification)")
    parser.add_argument("--error", metavar="TEXT", help="select by a text in the error")
    parser.add_argument("--older-than", metavar="DURATION", help="select those older than, for example, 2h")
    parser.add_argument("--newer-than", metavar="DURATION", help="select those newer than, for example, 7d")
    parser.add_argument("--limit", type=int, metavar="N", help="the maximum number of dead letters")
    add_operator_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done and change nothing")
    parser.add_argument(
        "--force", action="store_true", help="also redrive those whose event id the inbox may have deleted"
    )
    return parser


def _event(options: argparse.Namespace) -> dict[str, Any]:
    """Return the event that the function would be invoked with."""
    action = "list" if options.list else "discard" if options.discard else "redrive"
    filters = {name: getattr(options, name) for name in FILTERS if getattr(options, name) is not None}
    event = {
        "action": action,
        "kind": options.kind,
        "all": options.all,
        "dry_run": options.dry_run,
        "force": options.force,
        "actor": options.actor,
        "ids": options.ids,
        "filter": filters or None,
        "limit": options.limit,
        "reason": options.reason,
    }
    return {name: value for name, value in event.items() if value is not None}


def _print_progress(report: Report, progress: Progress) -> None:
    if report.command.action != "list":
        progress.print_line(f"{len(report.seen)} checked, {len(report.done)} {_outcome(report)}")


def _print_result(report: Report, progress: Progress) -> None:
    for letter in report.dead_letters:
        user = f" {letter.user_id}" if letter.user_id else ""
        progress.print_line(
            f"{letter.dead_letter_id}  {letter.since:%Y-%m-%d %H:%M}  {letter.event_type or '-'}{user}: {letter.error}"
        )
    if report.command.action == "list":
        progress.print_line(f"{len(report.dead_letters)} open{', and more' if report.more else ''}.")
        return
    _print_ids(f"{len(report.done)} {_outcome(report)}", report.done, progress)
    for reason, ids in report.skipped.items():
        _print_ids(f"{len(ids)} skipped: {reason}", ids, progress)
    if report.more:
        progress.print_line("The limit was reached; there may be more.")


def _print_ids(title: str, ids: Sequence[object], progress: Progress) -> None:
    progress.print_line(f"{title}{':' if ids else '.'}")
    for dead_letter_id in ids[:MAX_PRINTED_IDS]:
        progress.print_line(f"  {dead_letter_id}")
    if len(ids) > MAX_PRINTED_IDS:
        progress.print_line(f"  … and {len(ids) - MAX_PRINTED_IDS} more")


def _outcome(report: Report) -> str:
    outcome = "redriven" if report.command.action == "redrive" else "discarded"
    return f"would be {outcome}" if report.command.dry_run else outcome
