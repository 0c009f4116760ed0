"""`grantwire events tail`: changes as they happen, from the change feed or from NATS."""

import itertools
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.text import Text

from grantwire_cli.api import DEFAULT_TIMEOUT_SECONDS, pause_before
from grantwire_cli.commands.parameters import Limit
from grantwire_cli.errors import CommandError, UnavailableError
from grantwire_cli.nats_events import read_events
from grantwire_cli.output import visible
from grantwire_cli.registry import new_group, register
from grantwire_cli.session import Session
from grantwire_cli.times import human_time

app = new_group("Follow the changes of all entitlements.")

CHANGES, SNAPSHOT = "/v1/changes", "/v1/snapshot"
PAGE_SIZE = 1000
MAX_WAIT_SECONDS = 20
TYPE_STYLES = {
    "EntitlementGranted": "green",
    "EntitlementStarted": "green",
    "EntitlementExtended": "cyan",
    "EntitlementRevoked": "red",
    "EntitlementExpiring": "yellow",
    "EntitlementExpired": "yellow",
}


@register(
    app,
    "tail",
    "grantwire events tail",
    "grantwire events tail --user u_123 --json",
    "grantwire events tail --from-beginning --no-follow --json > changes.jsonl",
    "grantwire events tail --nats",
)
def tail(
    session: Session,
    after: Annotated[str | None, typer.Option("--after", metavar="CURSOR", help="Continue after this cursor.")] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Begin with the oldest change.")] = False,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for new changes until Ctrl-C.")] = True,
    user: Annotated[str | None, typer.Option("--user", help="Only of this user.")] = None,
    sku: Annotated[str | None, typer.Option("--sku", help="Only of this stock keeping unit.")] = None,
    limit: Limit = None,
    nats: Annotated[
        bool, typer.Option("--nats", help="Read from NATS with the reader's address (extra nats).")
    ] = False,
    stream: Annotated[str, typer.Option("--stream", help="The stream, with --nats.")] = "ENTITLEMENTS",
    consumer: Annotated[
        str | None, typer.Option("--consumer", help="The durable consumer, with --nats (default: the user's name).")
    ] = None,
) -> None:
    """Print changes as they happen: by default new ones, from the change feed over HTTP.

    With --nats, events are read with the durable consumer of a NATS user and acknowledged. Use a consumer of your
    own: what this command acknowledges, another reader of the same consumer does not get. The address is
    GRANTWIRE_NATS_URL, or nats_url of the profile or of the local stack.
    """

    def is_wanted(event: dict[str, Any]) -> bool:
        return user in {None, event.get("user_id")} and sku in {None, event.get("stock_keeping_unit")}

    if nats:
        url = session.target.nats_url
        if not url:
            raise CommandError(
                "There is no address of NATS.", hint="Set GRANTWIRE_NATS_URL, or nats_url of the profile."
            )
        events = read_events(url, stream=stream, consumer=consumer or "", follow=follow, wanted=is_wanted, limit=limit)
        _print(session, events)
        return
    changes = _changes(session, after, from_beginning=from_beginning, follow=follow)
    _print(session, itertools.islice(filter(is_wanted, changes), limit))


def _changes(session: Session, after: str | None, *, from_beginning: bool, follow: bool) -> Iterator[dict[str, Any]]:
    """Yield changes from the feed. While the installation is unavailable, wait and continue at the same cursor."""
    timeout = DEFAULT_TIMEOUT_SECONDS if session.options.timeout is None else session.options.timeout
    wait = max(0, min(MAX_WAIT_SECONDS, int(timeout) - 5)) if follow else 0
    if after is None and not from_beginning:
        after = session.api.get(SNAPSHOT, limit=1)["changes_after"]
    failures, started = 0, False
    try:
        while True:
            try:
                page = session.api.get(CHANGES, after=after, limit=PAGE_SIZE, wait=wait)
                failures = 0
            except UnavailableError as error:
                if not follow:
                    raise
                failures += 1
                session.warn(f"{error} Waiting.")
                time.sleep(pause_before(failures))
                continue
            started = True
            yield from page["changes"]
            after = page["next_after"]
            if not follow and not page["has_more"]:
                return
    finally:
        if started and after:
            session.note(f"Continue with: grantwire events tail --after {after}")


def _print(session: Session, events: Iterator[dict[str, Any]]) -> None:
    for event in events:
        if session.output.as_json:
            session.output.json_line(event)
        else:
            session.output.show(_line(event), soft_wrap=True)


def _line(event: dict[str, Any]) -> Text:
    kind = str(event.get("event_type") or "not an event")
    return Text.assemble(
        (f"{human_time(event.get('occurred_at')):21}", "dim"),
        (f"{kind.removeprefix('Entitlement'):9}", TYPE_STYLES.get(kind, "red")),
        visible(event.get("user_id")),
        "  ",
        (visible(event.get("stock_keeping_unit")), "bold"),
        f"  v{event.get('version', '?')}  ",
        visible(event.get("reason") or event.get("source") or event.get("problem")),
        (f"  {visible(event.get('purchase_id') or event.get('source_id'))}", "dim"),
    )
