"""The picture of an installation's state, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from grantwire_cli.errors import ExitCode
from grantwire_cli.output import cell, make_table, visible
from grantwire_cli.times import human_time, short_duration
from grantwire_cli.wording import count_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from grantwire_cli.health import Health

OUTCOME_STYLES = {
    "OK": "green",
    "DEGRADED": "yellow",
    "FAILED": "red",
    "UP": "green",
    "DOWN": "red",
    "UNKNOWN": "yellow",
    "AVAILABLE": "green",
    "FAILING": "yellow",
    "UNAVAILABLE": "red",
}
# Where the oldest change is that has not arrived.
STAGES = {
    "transactions": "in a transaction that has not ended",
    "times": "a start or an end is due and not recorded",
    "outbox": "its event is not published",
    "stream": "its event is published and not in the inbox",
    "notifications": "its notification is not sent",
}
# A younger change is on its way.
_NOTICEABLE_SECONDS = 5


def render(health: Health, *, last: Health | None = None, away: str = "", interval: float = 0) -> RenderableType:
    """Return the picture. If the installation does not respond, `last` is shown below, with the time of its report."""
    parts: list[RenderableType] = [_headline(health, interval), *_settled(health)]
    if health.error is not None:
        parts.append(Text(f"  {visible(health.error)}{f' No report {away}.' if away else ''}", style="red"))
        parts += [Text(f"  {visible(line)}") for line in health.error.hint.splitlines()]
    parts += _problems(health)
    if health.local:
        parts += [Text(), _servers(health.local)]
    report = health.report or (last.report if last else None)
    if report:
        if health.report is None:
            parts += [Text(), Text(f"The last report, of {human_time(report['at'])}:", style="yellow")]
        parts += _report(report)
    elif health.local and health.local.get("backlog"):
        parts += _backlog(health.local["backlog"])
    return Group(*parts)


def _headline(health: Health, interval: float) -> Text:
    away = health.error is None or health.error.exit_code == ExitCode.UNAVAILABLE
    state = health.report["state"] if health.report else "NO RESPONSE" if away else "NO REPORT"
    style = {"OK": "bold green", "ATTENTION": "bold yellow"}.get(state, "bold red")
    line = Text.assemble(("● ", style), (visible(health.title), "bold"), "  ", (state.replace("_", " "), style))
    if health.report:
        line.append(f"  Every change up to {human_time(health.report['settled']['through'])} has arrived.")
    if interval:
        line.append(f"  every {interval:g} s, Ctrl-C ends it", style="dim")
    return line


def _settled(health: Health) -> list[RenderableType]:
    """Return the age of the oldest change that has not arrived, and where it is, if it is noticeable."""
    if health.report is None or health.report["settled"]["age_seconds"] < _NOTICEABLE_SECONDS:
        return []
    settled = health.report["settled"]
    place = STAGES.get(settled["held_back_by"], settled["held_back_by"])
    return [Text(f"  The oldest later change waits for {short_duration(settled['age_seconds'])}: {visible(place)}.")]


def _problems(health: Health) -> list[RenderableType]:
    """Return each problem, and below those of one kind since when, the last error, what still works and what to do."""
    by_code: dict[str, list[Mapping[str, Any]]] = {}
    for problem in health.report["problems"] if health.report else ():
        by_code.setdefault(problem["code"], []).append(problem)
    parts: list[RenderableType] = []
    for problems in by_code.values():
        parts += [Text.assemble(("  ! ", "yellow"), visible(problem["message"])) for problem in problems]
        first = problems[0]
        rows = {
            "since": human_time(first["since"]),
            "last error": _unless_in(first["message"], first["last_error"]),
            "still works": first["still_works"],
            "try": first["to_do"],
        }
        table = Table.grid(padding=(0, 1))
        for name, text in rows.items():
            if text:
                table.add_row(Text(f"    {name}", style="dim"), Text(visible(text)))
        parts.append(table)
    return parts


def _unless_in(message: str, error: str | None) -> str:
    return "" if error is None or error in message else error


def _report(report: Mapping[str, Any]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    parts += [Text(), _flow(report)]
    if report["dead_letters"]["groups"]:
        dead_letters = [
            (group["kind"], group["count"], human_time(group["first_at"]), human_time(group["last_at"]), group["cause"])
            for group in report["dead_letters"]["groups"]
        ]
        parts += [Text(), make_table(("dead letters", "count", "first", "last", "cause"), dead_letters)]
    if report["notifications"]["waiting"]:
        columns = ("waiting notifications", "oldest change", "next attempt", "last error")
        waiting = [
            (group["count"], human_time(group["oldest_at"]), human_time(group["next_attempt_at"]), group["cause"])
            for group in report["notifications"]["waiting"]
        ]
        parts += [Text(), make_table(columns, waiting)]
    if report["workers"]:
        parts += [Text(), _workers(report["workers"])]
    return [*parts, Text(), *_facts(report)]


def _flow(report: Mapping[str, Any]) -> RenderableType:
    outbox, stream, notifications = report["outbox"], report["stream"], report["notifications"]
    rows: list[Sequence[object]] = [
        (
            "outbox",
            _count(outbox, "pending"),
            _count(outbox, "in_flight"),
            _failed(_count(outbox, "failed")),
            outbox["published_last_minute"],
            _age(outbox["oldest_pending_seconds"]),
        ),
        (
            Text("NATS ").append(stream["state"], style=OUTCOME_STYLES.get(stream["state"], "")),
            "unknown" if stream["consumer_lag"] is None else stream["consumer_lag"],
            "",
            "",
            report["inbox"]["processed_last_minute"],
            _stream_note(stream),
        ),
        (
            "notifications",
            _count(notifications, "pending"),
            _count(notifications, "processing"),
            _failed(_count(notifications, "failed")),
            notifications["sent_last_minute"],
            _age(notifications["oldest_due_seconds"]),
        ),
        (
            Text("receiver ").append(
                report["receiver"]["state"], style=OUTCOME_STYLES.get(report["receiver"]["state"], "")
            ),
            "",
            "",
            _failed(report["receiver"]["failures_in_a_row"]),
            "",
            "",
        ),
    ]
    return make_table(("stage", "waiting", "in progress", "failed", "last minute", "oldest"), rows)


def _age(seconds: float) -> str:
    return short_duration(seconds) if seconds else ""


def _stream_note(stream: Mapping[str, Any]) -> str:
    since = stream.get("unknown_since")
    parts = (stream["reason"], f"unknown since {human_time(since)}" if since else None)
    return "; ".join(part for part in parts if part)


def _workers(workers: Sequence[Mapping[str, Any]]) -> RenderableType:
    rows = [
        (
            worker["worker"],
            Text(worker["outcome"], style=OUTCOME_STYLES.get(worker["outcome"], "")),
            Text(f"{short_duration(worker['seconds_since'])} ago", style="red" if worker["late"] else ""),
            short_duration(worker["duration_ms"] / 1000),
            _failed(worker["failures_in_a_row"]),
            worker["error"] or "",
        )
        for worker in workers
    ]
    return make_table(("worker", "last run", "ended", "took", "failures", "error"), rows)


def _facts(report: Mapping[str, Any]) -> list[Text]:
    model, schema, partitions, commands = (report[name] for name in ("read_model", "schema", "partitions", "commands"))
    differences = ", ".join(f"{model[name]} {name}" for name in ("ahead", "behind", "wrong") if model[name] is not None)
    expired = sum(lease["expired"] for lease in report["leases"].values())
    held = sum(lease["held"] for lease in report["leases"].values())
    facts = {
        "read model": f"{differences or 'not measured yet'}  {human_time(model['measured_at'])}",
        "schema": f"{schema['version']}" + ("" if schema["matches"] else f", but the code needs {schema['expected']}"),
        "audit": f"partitions until {partitions['last_month']}, "
        f"{count_of(partitions['rows_in_default'], 'row')} in the default",
        "leases": f"{held} held, {expired} expired",
        "commands": f"{commands['pending']} pending, {commands['running']} running, "
        f"{commands['failed_last_day']} failed in the last day",
    }
    return [Text.assemble((f"{name:12}", "bold"), visible(text)) for name, text in facts.items()]


def _servers(local: Mapping[str, Any]) -> RenderableType:
    rows: list[Sequence[object]] = [
        (server["title"], "up" if server["alive"] else "down", server["port"] or "", server["pid"] or "")
        for server in local["servers"]
    ]
    rows.append(("the API", "up" if local["api_url"] else "down", "", ""))
    return make_table(("server", "state", "port", "pid"), rows)


def _backlog(backlog: Mapping[str, Any]) -> list[RenderableType]:
    if "error" in backlog:
        return [Text(f"  {visible(backlog['error'])}", style="red")]
    rows = [(row["table"], row["status"], row["count"]) for row in backlog["counts"]]
    letters = ", ".join(f"{kind} {count}" for kind, count in backlog["dead_letters"].items())
    age = backlog["oldest_pending_seconds"]
    return [
        Text(),
        Text("From the local database:", style="dim"),
        make_table(("table", "status", "count"), rows),
        Text(f"oldest pending event  {short_duration(age) or 'none'}"),
        Text(f"consumer lag          {backlog['consumer_lag'] or 'unknown'}"),
        Text(f"open dead letters     {letters}"),
    ]


def _count(stage: Mapping[str, Any], name: str) -> object:
    return f"{stage[name]}+" if stage["capped"] and stage[name] else stage[name]


def _failed(count: object) -> Text:
    text = cell(count)
    text.stylize("red" if count else "dim")
    return text
