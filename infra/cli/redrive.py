"""`make redrive`: list, redrive or discard dead letters, on the running stack or on one that the environment names."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
from typing import TYPE_CHECKING, Any

from infra.cli import target
from infra.local.layer import product_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grantwire.dead_letters.dead_letter import Report
    from infra.local.progress import Progress

FILTERS = ("event_type", "user_id", "error", "older_than", "newer_than")
SHOWN = 20


def redrive(arguments: Sequence[str], progress: Progress) -> int:
    """Carry out what the options say, as the function redrive_dead_letters does; 1 if anything chosen was left."""
    options = _parser().parse_args(arguments)
    environ = target.environment(os.environ, needs_nats=options.kind == "nats")
    with product_code("`--help` explains the options; repeating is harmless."):
        from grantwire.dead_letters.commands import DeadLetterCommand  # noqa: PLC0415  # found only now
        from grantwire.runtime.redrive import RedriveRuntime  # noqa: PLC0415

        order = DeadLetterCommand.parse(_event(options))
        with contextlib.closing(RedriveRuntime.build(environ)) as runtime:
            report = runtime.dead_letters.execute(order, on_batch=lambda so_far: _say_progress(so_far, progress))
    _say_result(report, progress)
    return 1 if report.skipped else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="redrive", description="List, redrive or discard dead letters.", epilog=target.EPILOG
    )
    parser.add_argument("--kind", required=True, choices=("outbox", "notification", "nats"), help="which dead letters")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="show them, change nothing")
    what.add_argument("--discard", action="store_true", help="give them up instead of sending them again")
    parser.add_argument("--ids", nargs="+", metavar="ID", help="these")
    parser.add_argument("--all", action="store_true", help="every open one")
    parser.add_argument("--event-type", metavar="TYPE", help="those of this type")
    parser.add_argument("--user-id", metavar="USER", help="those of this user (outbox, notification)")
    parser.add_argument("--error", metavar="TEXT", help="those whose error contains this")
    parser.add_argument("--older-than", metavar="DURATION", help="such as 2h")
    parser.add_argument("--newer-than", metavar="DURATION", help="such as 7d")
    parser.add_argument("--limit", type=int, metavar="N", help="at most so many")
    parser.add_argument("--reason", metavar="WHY", help="kept with the action")
    parser.add_argument("--actor", metavar="WHO", default=getpass.getuser(), help="kept too; you, unless given")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--force", action="store_true", help="also what the inbox may have forgotten")
    return parser


def _event(options: argparse.Namespace) -> dict[str, Any]:
    """What the function would be invoked with."""
    action = "list" if options.list else "discard" if options.discard else "redrive"
    chosen = {name: getattr(options, name) for name in FILTERS if getattr(options, name) is not None}
    event = {
        "action": action,
        "kind": options.kind,
        "all": options.all,
        "dry_run": options.dry_run,
        "force": options.force,
        "actor": options.actor,
        "ids": options.ids,
        "filter": chosen or None,
        "limit": options.limit,
        "reason": options.reason,
    }
    return {name: value for name, value in event.items() if value is not None}


def _say_progress(report: Report, progress: Progress) -> None:
    if report.command.action != "list":
        progress.say(f"{len(report.seen)} seen, {len(report.done)} {_done(report)}")


def _say_result(report: Report, progress: Progress) -> None:
    for letter in report.dead_letters:
        user = f" {letter.user_id}" if letter.user_id else ""
        progress.say(
            f"{letter.dead_letter_id}  {letter.since:%Y-%m-%d %H:%M}  {letter.event_type or '-'}{user}: {letter.error}"
        )
    if report.command.action == "list":
        progress.say(f"{len(report.dead_letters)} open{', and more' if report.more else ''}.")
        return
    _say_ids(f"{len(report.done)} {_done(report)}", report.done, progress)
    for why, ids in report.skipped.items():
        _say_ids(f"{len(ids)} left: {why}", ids, progress)
    if report.more:
        progress.say("There may be more: the limit was reached.")


def _say_ids(title: str, ids: Sequence[object], progress: Progress) -> None:
    progress.say(f"{title}{':' if ids else '.'}")
    for one in ids[:SHOWN]:
        progress.say(f"  {one}")
    if len(ids) > SHOWN:
        progress.say(f"  … and {len(ids) - SHOWN} more")


def _done(report: Report) -> str:
    done = "redriven" if report.command.action == "redrive" else "discarded"
    return f"would be {done}" if report.command.dry_run else done
