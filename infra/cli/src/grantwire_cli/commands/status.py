"""`grantwire status`: what flows, what waits, what failed, and which part does not respond."""

import time
from datetime import UTC, datetime
from typing import Annotated, NoReturn

import typer

from grantwire_cli.commands.status_view import render
from grantwire_cli.health import WATCH_TIMEOUT_SECONDS, Health, read_health
from grantwire_cli.registry import register
from grantwire_cli.session import Session
from grantwire_cli.times import format_time, human_time, short_duration


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""
    register(
        app,
        "status",
        "grantwire status",
        "grantwire --profile prod status --watch",
        "grantwire status --json | jq .status.problems",
    )(status)


def status(
    session: Session,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.5, help="Seconds between two refreshes.")] = 2.0,
) -> int:
    """Show the state of the installation: events, notifications, dead letters, workers, problems.

    The exit code is 0 if nothing needs a person, 5 if something does, and 3 if the installation does not respond.
    """
    if watch:
        _watch(session, interval)
    health = read_health(session)
    _print(session, health)
    return health.exit_code


def _print(session: Session, health: Health) -> None:
    if session.output.as_json:
        session.output.json(health.as_dict())
    else:
        session.output.show(render(health))


def _watch(session: Session, interval: float) -> NoReturn:
    """Show the state again and again, on a terminal in place; with --json, one line for each time."""
    if session.output.is_terminal and not session.output.as_json:
        _watch_in_place(session, interval)
    while True:
        health = read_health(session, WATCH_TIMEOUT_SECONDS)
        at = format_time(datetime.now(UTC))
        if session.output.as_json:
            session.output.json_line({"at": at, **health.as_dict()})
        else:
            session.output.text(human_time(at))
            session.output.show(render(health))
            session.output.line()
        time.sleep(interval)


def _watch_in_place(session: Session, interval: float) -> NoReturn:
    from rich.live import Live  # noqa: PLC0415  # imported only for a terminal

    away_since: float | None = None
    last: Health | None = None
    with Live(console=session.output.console, screen=True, auto_refresh=False) as live:
        while True:
            health = read_health(session, WATCH_TIMEOUT_SECONDS)
            if health.report is not None:
                away_since, last = None, health
            else:
                away_since = away_since or time.monotonic()
            away = f"for {short_duration(time.monotonic() - away_since)}" if away_since else ""
            live.update(render(health, last=last, away=away, interval=interval), refresh=True)
            time.sleep(interval)
