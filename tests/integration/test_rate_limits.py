"""G6: a token bucket for each client, shared by all execution environments."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from functions.grant.handler import handler as grant
from grantwire.clients.limits import CHUNK_SECONDS, LimitSettings, RateLimiter
from grantwire.clients.scopes import Scope
from grantwire.clients.store import ClientLimits, Clients
from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements import Entitlements
from grantwire.entitlements.settings import TimeSettings
from grantwire.errors import RateLimitedError, TooLargeError
from grantwire.idempotency import IdempotencySettings
from grantwire.operator_actions import Operator
from grantwire.settings import load
from grantwire.wiring.routes.change_batch import BatchRuntime
from grantwire.wiring.routes.check_entitlement import CheckRuntime
from grantwire.wiring.routes.entitlements import ApiRuntime
from grantwire.wiring.routes.show_inbox import NotificationListRuntime
from grantwire.wiring.routes.show_summary import SummaryRuntime
from tests.support.checks import CHECKS, CheckClient
from tests.support.client import GRANTS, Client, event, item
from tests.support.concurrency import run_concurrently
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows

START = datetime(2026, 1, 8, 7, 10, tzinfo=UTC)
LIMITS = LimitSettings(rate=10, burst=100)
OPERATOR = Operator("ann", "tests", "tests")


class Clock:
    """The time of all environments and of the database."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def environment(self) -> float:
        """Return the time in seconds."""
        return self.seconds

    def database(self) -> datetime:
        """Return the time of the database."""
        return START + timedelta(seconds=self.seconds)


class CountingDatabase(Database):
    """Counts the statements that it runs."""

    statements = 0

    def fetch_row(self, *arguments: object) -> tuple[object, ...]:
        """Count and run one statement."""
        self.statements += 1
        return super().fetch_row(*arguments)  # type: ignore[arg-type]


@contextmanager
def open_database(database_url: str) -> Iterator[CountingDatabase]:
    """Open the connection of one execution environment."""
    database = CountingDatabase(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    with closing(database):
        yield database


@pytest.fixture
def clock() -> Clock:
    """A clock that tests move."""
    return Clock()


@pytest.fixture
def database(database_url: str) -> Iterator[CountingDatabase]:
    """The connection of one execution environment."""
    with open_database(database_url) as database:
        yield database


def make_limiter(database: Database, clock: Clock, settings: LimitSettings = LIMITS) -> RateLimiter:
    """Return the limiter of a new execution environment."""
    return RateLimiter(database, settings, clock.environment, clock.database)


def spend(limiter: RateLimiter, client_id: str = "c", *, attempts: int = 1000) -> int:
    """Send requests until one is refused, and return how many passed."""
    for passed in range(attempts):
        try:
            limiter.take(client_id)
        except RateLimitedError:
            return passed
    return attempts


def test_burst_passes_and_then_the_rate(database: CountingDatabase, clock: Clock) -> None:
    """G6: exactly the burst at once; afterwards as many as the bucket got since."""
    limiter = make_limiter(database, clock)
    assert spend(limiter) == 100
    clock.seconds += 2
    assert spend(limiter) == 20
    clock.seconds += 3600
    assert spend(limiter) == 100


def test_clock_that_was_set_back_neither_blocks_a_client_nor_fills_its_bucket(
    database: CountingDatabase, clock: Clock
) -> None:
    """G6: the client keeps its tokens, gets none for the step, and the rate from the new time on."""
    limiter = make_limiter(database, clock)
    limiter.take("c", 70)
    clock.seconds -= 3600
    assert spend(limiter) == 30
    with pytest.raises(RateLimitedError) as refused:
        limiter.take("c")
    assert refused.value.retry_after == 1
    clock.seconds += 2
    assert spend(limiter) == 20
    clock.seconds += 3600
    assert spend(limiter) == 100


def test_most_requests_need_no_round_trip(database: CountingDatabase, clock: Clock) -> None:
    """G6: a full bucket gives a tenth of the burst for each call; a refusal is remembered until there are tokens."""
    limiter = make_limiter(database, clock)
    assert spend(limiter, attempts=30) == 30
    assert database.statements <= 4
    spend(limiter)
    before = database.statements
    for _ in range(50):
        assert spend(limiter) == 0
    assert database.statements == before


def test_refusal_says_when_to_retry(database: CountingDatabase, clock: Clock) -> None:
    """G6, E5: in whole seconds, at least one; then there are tokens."""
    limiter = make_limiter(database, clock, LimitSettings(rate=1, burst=50))
    spend(limiter)
    with pytest.raises(RateLimitedError) as refused:
        limiter.take("c")
    assert refused.value.retry_after == 5
    clock.seconds += 4.9
    with pytest.raises(RateLimitedError) as refused:
        limiter.take("c")
    assert refused.value.retry_after == 1
    clock.seconds += 0.2
    limiter.take("c")


def test_clients_do_not_share_a_bucket(database: CountingDatabase, clock: Clock) -> None:
    """G6: a client at its limit takes nothing from another."""
    limiter = make_limiter(database, clock)
    assert [spend(limiter, client) for client in ("a", "b", "a")] == [100, 100, 0]


def test_first_request_of_another_environment_passes(database: CountingDatabase, clock: Clock) -> None:
    """G6: thirty environments with one request each get tokens, although each call takes a chunk."""
    assert [spend(make_limiter(database, clock), attempts=1) for _ in range(30)] == [1] * 30


@pytest.mark.parametrize("move", [CHUNK_SECONDS, 3600, -1])
def test_tokens_of_a_frozen_environment_expire(database: CountingDatabase, clock: Clock, move: float) -> None:
    """G6: after a second, and if the clock was set back; the next request takes a new chunk."""
    limiter = make_limiter(database, clock)
    limiter.take("c")
    clock.seconds += move
    limiter.take("c")
    assert database.statements == 2
    limiter.take("c")
    assert database.statements == 2


def test_many_environments_share_one_bucket(database_url: str, clock: Clock) -> None:
    """G6: eight environments at the same time let exactly the burst pass, and then what the rate adds."""

    def environment(_number: int) -> tuple[int, int]:
        with open_database(database_url) as database:
            limiter = make_limiter(database, clock, LimitSettings(rate=100, burst=500))
            return spend(limiter), spend(limiter)

    passed = run_concurrently(8, environment)
    assert sum(first for first, _ in passed) == 500
    assert all(again == 0 for _, again in passed)
    clock.seconds += 3
    assert sum(first for first, _ in run_concurrently(8, environment)) == 300


@pytest.mark.parametrize(("rate", "held"), [(100, 0.99), (30, 2.99)])
def test_excess_of_held_chunks_is_bounded(database_url: str, clock: Clock, rate: int, held: float) -> None:
    """G6: environments that take chunks early and spend them late exceed the bucket by at most one second's rate.

    The bound is burst + rate x (t + 1 s) in any time t. The worst case is a full bucket after chunks were taken: those
    that are still valid are spent, too, and those that were held for longer are not.
    """
    settings = LimitSettings(rate=rate, burst=100)
    with open_database(database_url) as database:
        limiters = [make_limiter(database, clock, settings) for _ in range(20)]
        for limiter in limiters:
            limiter.take("c")
        clock.seconds += held
        window = sum(spend(limiter) for limiter in limiters)
        assert (window > settings.burst) == (held < CHUNK_SECONDS)  # the chunks that were held
        for _ in range(10):
            clock.seconds += 0.1
            window += sum(spend(limiter) for limiter in limiters)
    assert window <= settings.burst + settings.rate * (1 + CHUNK_SECONDS)


def test_limits_of_a_client_replace_the_defaults(
    database: CountingDatabase, clients_url: str, clock: Clock, rows: Rows
) -> None:
    """G6: when it is created and later, each one separately; they apply to the next chunk."""
    with open_database(clients_url) as administration:
        _check_limits(Clients(administration, "dev"), database, clock)
    for column in ("rate_limit", "burst_limit"):
        with pytest.raises(Exception, match=f"api_clients_{column}"):
            rows.execute(f"UPDATE api_clients SET {column} = 0")  # noqa: S608
    recorded = rows.execute("SELECT action, selection FROM operator_actions ORDER BY occurred_at").fetchall()
    assert [row["action"] for row in recorded] == ["create", "limits", "limits"]
    assert recorded[1]["selection"] == {"rate_limit": None, "burst_limit": 40}


def _check_limits(clients: Clients, database: Database, clock: Clock) -> None:
    client_id = clients.create(OPERATOR, "shop", [Scope.READ_OPERATIONS], None, ClientLimits(5, 20)).token.client_id
    limiter = make_limiter(database, clock)
    assert spend(limiter, client_id) == 20
    clock.seconds += 2
    assert spend(limiter, client_id) == 10
    clients.set_limits(OPERATOR, client_id, ClientLimits(None, 40))
    clock.seconds += 3
    assert spend(limiter, client_id) == 30
    clients.set_limits(OPERATOR, client_id, ClientLimits())
    clock.seconds += 100
    assert spend(limiter, client_id) == 100
    (listed,) = clients.list_all()
    assert (listed["rate_limit"], listed["burst_limit"]) == (None, None)


def test_request_above_the_limit_is_429(database_url: str, database: Database, clock: Clock, rows: Rows) -> None:
    """G6, E5: with Retry-After; nothing is written, and the same request passes later. Invalid requests count, too."""
    with Client(database_url) as client:
        client.runtime = ApiRuntime(
            Entitlements(client.database, load(IdempotencySettings, {}), load(TimeSettings, {})),
            make_limiter(database, clock, LimitSettings(rate=1, burst=2)),
        )
        assert client.grant("k1").status == 200
        assert client.grant("k1", user_id="").status == 400
        refused = client.grant("k2", user_id="u_2")
        assert (refused.status, refused.code, refused.headers["Retry-After"]) == (429, "RATE_LIMITED", "1")
        assert client.list_entitlements().status == 429
        assert len(rows.execute("SELECT FROM entitlement_audit").fetchall()) == 1
        clock.seconds += 1
        assert client.grant("k2", user_id="u_2").status == 200


@pytest.mark.parametrize(("method", "path", "status"), [("DELETE", GRANTS, 405), ("POST", "/v1/other", 404)])
def test_request_without_a_route_counts(
    database_url: str, database: Database, clock: Clock, method: str, path: str, status: int
) -> None:
    """G6: a client cannot send any number of requests to a wrong method or path."""
    with Client(database_url) as client:
        runtime = ApiRuntime(client.runtime.entitlements, make_limiter(database, clock, LimitSettings(rate=1, burst=2)))
        handler = grant.with_runtime(runtime)
        statuses = [handler(event(method, path), None)["statusCode"] for _ in range(3)]
    assert statuses == [status, status, 429]


def test_items_of_a_batch_count_as_requests(database: CountingDatabase, clock: Clock) -> None:
    """G6, K6: a batch takes one token for each item, with at most one call; singles get what is left."""
    limiter = make_limiter(database, clock)
    limiter.take("c", 70)
    assert database.statements == 1
    with pytest.raises(RateLimitedError) as refused:
        limiter.take("c", 40)
    assert refused.value.retry_after == 1
    assert spend(limiter) == 30
    clock.seconds += 4
    limiter.take("c", 40)


def test_batch_spends_the_tokens_of_a_chunk_first(database: CountingDatabase, clock: Clock) -> None:
    """G6: only what is missing comes from the bucket, and without a call if nothing is."""
    limiter = make_limiter(database, clock)
    limiter.take("c")  # takes a chunk of 10
    limiter.take("c", 9)
    assert database.statements == 1
    limiter.take("c")
    limiter.take("c", 88)
    assert database.statements == 3
    assert spend(limiter) == 1


def test_refused_batch_is_remembered_and_smaller_requests_pass(database: CountingDatabase, clock: Clock) -> None:
    """G6: batches of this size or more are refused without a call until there are enough tokens, and others are not."""
    limiter = make_limiter(database, clock)
    limiter.take("c", 60)
    for _ in range(5):
        with pytest.raises(RateLimitedError):
            limiter.take("c", 50)
    assert database.statements == 2
    limiter.take("c", 30)
    assert database.statements == 3
    clock.seconds += 100
    limiter.take("c", 50)


@pytest.mark.parametrize("held", [0, 9])
def test_batch_larger_than_the_burst_is_refused_for_good(database: CountingDatabase, clock: Clock, held: int) -> None:
    """G6: with the limit, and not as something to try again later; it counts as one request."""
    limiter = make_limiter(database, clock)
    if held:
        limiter.take("c")  # leaves a chunk of 9
    for _ in range(3):
        with pytest.raises(TooLargeError, match="counts as 101 requests, but the burst limit of this client is 100"):
            limiter.take("c", 101)
    assert spend(limiter) == 100 - 3 - bool(held)
    with pytest.raises(RateLimitedError):
        limiter.take("c", 101)


def test_eight_environments_let_exactly_the_burst_of_items_pass(database_url: str, clock: Clock) -> None:
    """G6, K6: batches of different sizes at the same time."""

    def environment(number: int) -> int:
        passed = 0
        with open_database(database_url) as database:
            limiter = make_limiter(database, clock, LimitSettings(rate=10, burst=500))
            for _ in range(20):
                with suppress(RateLimitedError):
                    limiter.take("c", 3 + number)
                    passed += 3 + number
            return passed + spend(limiter)

    assert sum(run_concurrently(8, environment)) == 500


def test_batch_above_the_limit_is_429_and_one_above_the_burst_is_413(
    database_url: str, database: Database, clock: Clock, rows: Rows
) -> None:
    """G6, K6, E5: nothing is written; invalid items count, too, and a malformed batch counts as one."""
    with Client(database_url) as client:
        limiter = make_limiter(database, clock, LimitSettings(rate=1, burst=10))
        client.batch_runtime = BatchRuntime(client.batch_runtime.batches, limiter)
        assert client.batch(item("k1"), item("k2", user_id=""), item("k3", "revoke")).status == 200
        assert client.batch().status == 400
        before = rows.execute("SELECT count(*) FROM entitlement_audit").fetchall()
        refused = client.batch(*(item(f"r{n}") for n in range(7)))
        assert (refused.status, refused.code, refused.headers["Retry-After"]) == (429, "RATE_LIMITED", "1")
        too_large = client.batch(*(item(f"r{n}") for n in range(11)))
        assert (too_large.status, too_large.code) == (413, "TOO_LARGE")
        assert too_large.json["message"].endswith("the burst limit of this client is 10; send fewer items at once")
        assert rows.execute("SELECT count(*) FROM entitlement_audit").fetchall() == before
        assert client.batch(*(item(f"r{n}", user_id=f"r{n}") for n in range(5))).status == 200


def test_pairs_of_a_request_count_as_requests(database_url: str, database: Database, clock: Clock) -> None:
    """G13: 200 checks in one request do not cost one token. Malformed ones, and other routes, count as one."""
    with CheckClient(database_url) as client:
        limiter = make_limiter(database, clock, LimitSettings(rate=1, burst=10))
        client.runtime = replace(client.runtime, limiter=limiter)
        assert client.check_many(*[("u_1", "item1")] * 6).status == 200
        assert client.send("POST", CHECKS, body='{"checks": 7}').status == 400
        assert client.check("u_1", "item1").status == 200
        refused = client.check_many(*[("u_1", "item1")] * 4)
        assert (refused.status, refused.code, refused.headers["Retry-After"]) == (429, "RATE_LIMITED", "2")
        too_large = client.check_many(*[("u_1", "item1")] * 11)
        assert (too_large.status, too_large.code) == (413, "TOO_LARGE")
        assert "counts as 11 requests" in too_large.json["message"]
        clock.seconds += 2
        assert client.check_many(*[("u_1", "item1")] * 3).status == 200


@pytest.mark.parametrize("runtime", [ApiRuntime, BatchRuntime, CheckRuntime, SummaryRuntime, NotificationListRuntime])
def test_every_route_has_a_limiter(runtime: type[ApiRuntime | BatchRuntime]) -> None:
    """G6: only tests use a runtime without one."""
    environ = {**PLAINTEXT, "DATABASE_URL": "postgresql://u@h/d", "NOTIFICATION_INBOX_ENABLED": "true"}
    assert isinstance(runtime.build(environ).limiter, RateLimiter)


def test_limit_is_logged_and_counted_once(database: Database, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """G6: not for every refused request, so that a flood does not fill the log."""
    limiter = make_limiter(database, clock, LimitSettings(rate=1, burst=1))
    for _ in range(10):
        spend(limiter)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["client_id"] for line in lines if line.get("message") == "client reached its rate limit"] == ["c"]
    assert [line["LimitsReached"] for line in lines if "LimitsReached" in line] == [[1.0]]
