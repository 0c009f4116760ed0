"""The change feed: pages per second through the handler, and the cost of its index for grants."""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, LiteralString

from tests.bench.callers import load_event, load_handler
from tests.bench.fleet import Fleet
from tests.bench.pgbench import run_pgbench
from tests.bench.results import Row, Section
from tests.bench.rounds import run_rounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.rounds import Rounds
    from tests.bench.servers import Servers

PAGE_SIZE = 100
_FEED, _LIMIT = "change feed, handler", "pgbench"
_INDEXED, _BARE = "grant with the index", "grant without the index"
_METHOD = (
    f"{{}} clients page through a feed of {{:,}} changes in pages of {PAGE_SIZE}, from the beginning to the end, again"
    " and again. Each checks that it gets every change once. pgbench calls the SQL function for the first page. The"
    " cost of the index is measured with grants through the handler, on two databases that differ only in this index."
)

# A new month is not needed: all changes are in the current one, as those that consumers read mostly are.
_FILL: LiteralString = """
INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail, version,
                               status, purchase_id, changed_at)
SELECT gen_random_uuid(), 'local', 'GRANT', 'APPLIED', 'u' || n, 'item1', '{"reason": "purchase"}', 1, 'ACTIVE',
       'p' || n, now()
  FROM generate_series(%s::integer, %s::integer) n
"""
_FILL_BATCH = 100
_COUNTS: LiteralString = "SELECT (SELECT count(*) FROM entitlement_audit), (SELECT count(*) FROM entitlements)"
_SCRIPT = "SELECT changes, has_more FROM change_feed_page(NULL, NULL, NULL, NULL, 100);"


def make_feed_call(number: int) -> Callable[[], None]:
    """Return a call that reads the next page. At the end of the feed it checks the pages and begins again."""
    del number
    handler, event = load_handler("list_changes"), load_event("list_changes")
    pages = _read_pages(handler, event)
    return lambda: next(pages)


def _read_pages(handler: Any, event: dict[str, Any]) -> Any:
    expected = None
    while True:
        seen: list[str] = []
        query = {"limit": str(PAGE_SIZE)}
        while True:
            response = handler(event | {"queryStringParameters": query}, None)
            assert response["statusCode"] == 200, response
            page = json.loads(response["body"])
            seen += [change["event_id"] for change in page["changes"]]
            query["after"] = page["next_after"]
            yield
            if not page["has_more"]:
                break
        expected = expected or len(seen)
        assert len(seen) == len(set(seen)) == expected, (len(seen), len(set(seen)), expected)


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Measure pages of the feed, and grants with and without its index."""
    feed = _measure_pages(servers, effort, progress)
    index = _measure_index(servers, effort, progress)
    rows = [
        Row.from_rounds(feed, f"change feed, pages of {PAGE_SIZE}", grantwire=_FEED, limit=_LIMIT, unit="pages/s"),
        Row.from_rounds(index, "grant with the index of the feed", grantwire=_INDEXED, limit=_BARE, target=0.9),
    ]
    return Section("Change feed", rows, remarks=[_METHOD.format(effort.callers, effort.events)])


def _measure_pages(servers: Servers, effort: Effort, progress: Progress) -> Rounds:
    url = servers.database()
    with servers.owner(url) as owner:
        for first in range(0, effort.events, _FILL_BATCH):
            owner.execute(_FILL, (first, min(first + _FILL_BATCH, effort.events) - 1))
        owner.execute("VACUUM ANALYZE entitlement_audit")
    with Fleet("tests.bench.paths.changes:make_feed_call", effort.callers, servers.environ(url)) as fleet:
        return run_rounds(
            f"pages of {effort.events:,} changes, {effort.callers} clients",
            effort.rounds,
            {_FEED: partial(fleet.measure_rate, effort.seconds), _LIMIT: partial(_limit, servers, url, effort)},
            progress,
        )


def _limit(servers: Servers, url: str, effort: Effort) -> float:
    return run_pgbench(servers, url, _SCRIPT, clients=effort.callers, seconds=effort.seconds).rate


def _measure_index(servers: Servers, effort: Effort, progress: Progress) -> Rounds:
    urls = {_INDEXED: servers.database(), _BARE: servers.database()}
    with servers.owner(urls[_BARE]) as owner:
        owner.execute("DROP INDEX entitlement_audit_changes")
    with ExitStack() as stack:
        fleets = {
            name: stack.enter_context(
                Fleet("tests.bench.callers:make_grant_call", effort.callers, servers.environ(url))
            )
            for name, url in urls.items()
        }
        contenders = {name: partial(fleet.measure_rate, effort.seconds) for name, fleet in fleets.items()}
        rounds = run_rounds(f"grants, {effort.callers} clients", effort.rounds, contenders, progress)
    for name, url in urls.items():
        with servers.owner(url) as owner:
            counts = owner.execute(_COUNTS).fetchone()
        made = fleets[name].calls + effort.callers  # the first call of each client is not in the fleet's count
        if counts != (made, made):
            raise RuntimeError(f"audit rows and entitlements of {made} grants: {counts}")
    return rounds
