"""K9: a request that waits for a change, and the number of those that can wait."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.errors import RetryableError
from tests.support.client import CALLER
from tests.support.concurrency import run_concurrently
from tests.support.feed import FeedClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.conftest import Rows
    from tests.support.client import Client


class Time:
    """A clock that only `sleep` moves; `during` runs in each sleep."""

    def __init__(self, during: Callable[[int], object] = lambda _: None) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self._during = during

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Move the clock."""
        self.slept.append(seconds)
        self.now += seconds
        self._during(len(self.slept))


def waiting(rows: Rows) -> int:
    """Return the number of places that are taken."""
    (row,) = rows.execute("SELECT count(*) AS count FROM change_feed_waiters").fetchall()
    return int(row["count"])


def test_request_waits_for_a_change_and_returns_it(database_url: str, client: Client, rows: Rows) -> None:
    """K9: it polls in short steps, holds one place meanwhile, and frees it."""
    places = []

    def during(step: int) -> None:
        places.append(waiting(rows))
        if step == 5:
            client.grant("k", user_id="expected")

    time = Time(during)
    with FeedClient(database_url, clock=time.clock, sleep=time.sleep) as feed:
        response = feed.changes(wait="20").json
    assert [change["user_id"] for change in response["changes"]] == ["expected"]
    assert max(time.slept) <= 0.5
    assert time.now < 120
    assert set(places) == {1}
    assert waiting(rows) == 0


@pytest.mark.parametrize("seconds", [1, 20])
def test_request_without_a_change_ends_after_its_wait(database_url: str, rows: Rows, seconds: int) -> None:
    """K9: it is an empty page with a cursor, not an error, and never later than asked for."""
    time = Time()
    with FeedClient(database_url, clock=time.clock, sleep=time.sleep) as feed:
        response = feed.changes(wait=str(seconds)).json
    assert (response["changes"], response["has_more"]) == ([], False)
    assert response["next_after"]
    assert sum(time.slept) == pytest.approx(seconds)
    assert waiting(rows) == 0


def test_request_with_a_change_or_without_wait_needs_no_place(database_url: str, client: Client, rows: Rows) -> None:
    """K9: they are not refused while all places are taken."""
    rows.execute(
        "INSERT INTO change_feed_waiters SELECT gen_random_uuid(), n, now() + '1 h' FROM generate_series(1, 20) n"
    )
    time = Time()
    with FeedClient(database_url, clock=time.clock, sleep=time.sleep) as feed:
        empty = feed.changes()
        assert (empty.status, empty.json["changes"]) == (200, [])
        refused = feed.changes(wait="1")
        assert (refused.status, refused.code) == (429, "RATE_LIMITED")
        assert 3500 < int(refused.headers["Retry-After"]) <= 3600
        client.grant("k")
        feed.follow(None, 1)
        assert len(feed.changes(wait="20").json["changes"]) == 1
    assert time.slept == []


@pytest.mark.parametrize("setting", ["CHANGES_MAX_WAITING", "CHANGES_MAX_WAITING_PER_CLIENT"])
def test_only_as_many_requests_wait_as_the_setting_allows(database_url: str, rows: Rows, setting: str) -> None:
    """K9, G13: eight requests at the same time and three places: three wait, five get 429 at once."""
    places, requests = 3, 8
    all_decided = threading.Event()
    decided: Counter[str] = Counter()
    lock = threading.Lock()

    def decide(name: str) -> None:
        with lock:
            decided[name] += 1
            if decided.total() >= requests:
                all_decided.set()

    def request(_: int) -> int:
        def during(step: int) -> None:
            if step == 1:
                decide("waits")
                assert all_decided.wait(timeout=30)

        time = Time(during)
        environ = {setting: str(places)}
        with FeedClient(database_url, clock=time.clock, sleep=time.sleep, **environ) as feed:
            response = feed.changes(wait="1")
            if response.status == 429:
                decide("refused")
                assert 1 <= int(response.headers["Retry-After"]) <= 4
            return response.status

    statuses = Counter(run_concurrently(requests, request))
    assert statuses == {200: places, 429: requests - places}
    assert decided["waits"] == places
    assert waiting(rows) == 0


def _wait(  # noqa: PLR0913  # the arguments of the SQL function
    rows: Rows,
    now: datetime,
    *,
    seconds: int = 20,
    limit: int = 1,
    waiter: str | None = None,
    client: str = "c",
    client_limit: int = 100,
) -> int:
    """Take a place at this time, and return the seconds to wait, or 0."""
    (row,) = rows.execute(
        "SELECT * FROM change_feed_wait(coalesce(%s::uuid, gen_random_uuid()), %s, %s, %s, %s, %s)",
        (waiter, client, seconds, limit, client_limit, now),
    ).fetchall()
    return int(row["retry_after"])


def test_one_client_cannot_hold_all_places(database_url: str, rows: Rows) -> None:
    """G13: five of the twenty places by default. Another client still waits; the response says whose limit it is."""
    rows.execute(
        "INSERT INTO change_feed_waiters SELECT gen_random_uuid(), %s, now() + '1 h' FROM generate_series(1, 5)",
        (CALLER["principalId"],),
    )
    with FeedClient(database_url) as feed:
        refused = feed.changes(wait="20")
    assert (refused.status, refused.code) == (429, "RATE_LIMITED")
    assert "too many requests of this client wait" in refused.json["message"]
    now = datetime.now(UTC)
    wait = partial(_wait, rows, now, limit=20, client_limit=5)
    assert wait(client="other") == 0
    assert wait(client=CALLER["principalId"]) > 3500


def test_refused_client_waits_for_the_later_of_its_own_place_and_any(rows: Rows) -> None:
    """G13: a place that is free for others is none for a client that has its share."""
    now = datetime(2026, 1, 8, tzinfo=UTC)
    wait = partial(_wait, rows, now, limit=3, client_limit=2)
    assert [wait(client="a", seconds=seconds) for seconds in (10, 20)] == [0, 0]
    assert wait(client="a") == 10
    assert wait(client="b", seconds=30) == 0
    assert wait(client="b") == 10
    assert _wait(rows, now, client="a", limit=1, client_limit=2) == 30


def test_killed_waiter_frees_its_place_when_its_time_ends(database_url: str, rows: Rows) -> None:
    """K9: a function that was killed does not delete its row."""

    def kill(_: int) -> None:
        raise KeyboardInterrupt  # as a kill, it runs no other code of the request

    time = Time(kill)
    with FeedClient(database_url, clock=time.clock, sleep=time.sleep) as feed, pytest.raises(KeyboardInterrupt):
        feed.changes(wait="20")
    assert waiting(rows) == 1
    now = datetime.now(UTC)
    assert 15 < _wait(rows, now) <= 23
    assert _wait(rows, now + timedelta(seconds=30)) == 0
    assert waiting(rows) == 1


def test_second_waiter_is_counted_after_the_first(rows: Rows, owner_url: str) -> None:
    """K9: two requests that ask for the last place at the same time do not both get it."""
    statement = "SELECT retry_after FROM change_feed_wait(gen_random_uuid(), 'c', 20, 1, 1)"
    with psycopg.connect(owner_url) as first, psycopg.connect(owner_url) as second, ThreadPoolExecutor(1) as pool:
        assert first.execute(statement).fetchall() == [(0,)]
        result = pool.submit(lambda: second.execute(statement).fetchall())
        blocked = "SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        while not result.done() and not rows.execute(blocked, (first.info.backend_pid,)).fetchall():
            rows.execute("SELECT pg_sleep(0.01)")
        first.commit()
        ((seconds,),) = result.result(timeout=30)
    assert 1 <= seconds <= 20


def test_refused_waiter_gets_the_time_until_a_place_is_free(rows: Rows) -> None:
    """K9: at the latest, because a waiter may end earlier; also after the number of places was reduced."""
    now = datetime(2026, 1, 8, tzinfo=UTC)
    assert [_wait(rows, now, seconds=seconds, limit=3) for seconds in (5, 10, 20)] == [0, 0, 0]
    assert [_wait(rows, now, limit=limit) for limit in (3, 2, 1)] == [5, 10, 20]
    assert _wait(rows, now + timedelta(seconds=4.5), limit=3) == 1
    assert _wait(rows, now + timedelta(seconds=5), limit=3) == 0


def test_repeated_call_of_a_waiter_takes_one_place(rows: Rows) -> None:
    """K9: the statement is sent again if the connection was lost."""
    now = datetime(2026, 1, 8, tzinfo=UTC)
    waiter = "019bbafd-69c0-7000-8000-000000000001"
    assert [_wait(rows, now, waiter=waiter), _wait(rows, now, waiter=waiter)] == [0, 0]
    assert waiting(rows) == 1


def test_place_that_cannot_be_freed_does_not_lose_the_response(
    database_url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K9: the change is returned; the place is free when its time ends."""
    time = Time(lambda step: client.grant("k") if step == 1 else None)
    with FeedClient(database_url, clock=time.clock, sleep=time.sleep) as feed:
        fetch = feed.database.fetch_row

        def fail_to_leave(statement: Any, parameters: Any) -> Any:
            if "DELETE" in statement:
                raise RetryableError("temporarily unavailable")
            return fetch(statement, parameters)

        monkeypatch.setattr(feed.database, "fetch_row", fail_to_leave)
        assert len(feed.changes(wait="20").json["changes"]) == 1
