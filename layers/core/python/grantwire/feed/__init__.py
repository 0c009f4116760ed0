"""The change feed: every applied change once, in an order that a consumer can continue from (K9, ADR 0040).

`ChangeFeed.list` returns a page of changes after a cursor. Nothing ever appears behind a cursor that was handed out,
because a page ends below the oldest running transaction. Two versions of one entitlement can appear in either order;
consumers decide by version. With `wait` it polls until there is a change. At most `CHANGES_MAX_WAITING` requests of the
whole installation wait at the same time, and `CHANGES_MAX_WAITING_PER_CLIENT` of one client.

`Snapshot.list` returns a page of the current state of all entitlements. Every page has the cursor of the feed from the
time of the first page: a consumer that reads all pages and continues with that cursor misses nothing.

Both raise GoneError for a cursor from before a restore, RateLimitedError if too many requests wait, and RetryableError.
`report_lag` measures for how long the feed is held back.
"""

from grantwire.feed.change_feed import ChangeFeed
from grantwire.feed.lag import report_lag
from grantwire.feed.requests import ChangesRequest, SnapshotRequest
from grantwire.feed.settings import FeedSettings
from grantwire.feed.snapshot import Snapshot

__all__ = ["ChangeFeed", "ChangesRequest", "FeedSettings", "Snapshot", "SnapshotRequest", "report_lag"]
