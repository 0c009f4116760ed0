"""T9: documented timeouts hold, and what is no response of the API is an error."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_cli.api import Api, Response
from grantwire_cli.bulk.batches import make_batches
from grantwire_cli.bulk.sending import Sender
from grantwire_cli.checkout import Checkout
from grantwire_cli.errors import CommandError, UnavailableError
from grantwire_cli.following import follow
from grantwire_cli.output import Output
from grantwire_cli.target import Target
from tests.support.fake_api import TOKEN, FakeApi, Fault, Reply, error
from tests.support.ops_examples import COMMAND_ID, command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.fake_api import Call
    from tests.unit.command.conftest import Result

    Run = Callable[..., Result]

USER = "/v1/users/u_1/entitlements"


def test_response_of_another_server_is_an_error(grantwire: Run, api: FakeApi) -> None:
    """T9: a page of a proxy or a web site with 200."""
    api.routes[("GET", USER)] = lambda _call: Reply(200, "<html>")
    result = grantwire("entitlements", "list", "u_1", "--json")
    assert (result.code, result.out, result.error["code"]) == (1, "", "BAD_RESPONSE")


def test_timeout_is_the_limit_of_all_attempts(grantwire: Run, api: FakeApi) -> None:
    """T9: the second attempt gets only the time that the first one has left; a server that sends nothing is left."""
    now, limits = 0.0, []

    class TimedApi(Api):
        def send(self, *arguments: Any, **options: Any) -> Response:
            nonlocal now
            now += 9
            limits.append(options["timeout"])
            return super().send(*arguments, **options)

    api.faults = [Fault(error(504, "TIMEOUT", Retry_After="1"))]
    target = Target("test", api.url, TOKEN)
    with closing(TimedApi(target, timeout=10, clock=lambda: now, sleep=lambda _seconds: None)) as timed:
        assert timed.get(USER)["entitlements"] == []
    assert limits == [10, 1]
    released = threading.Event()

    def send_nothing(_call: Call) -> Reply:
        released.wait(60)
        return Reply(200, {"entitlements": []})

    api.routes[("GET", USER)] = send_nothing
    result = grantwire("entitlements", "list", "u_1", "--timeout", "1", "--json")
    released.set()
    assert (result.code, result.error["code"]) == (3, "NO_RESPONSE")


def test_wait_for_a_command_ends_in_time(api: FakeApi) -> None:
    """T9: the last pause is as long as the time that is left."""
    now, pauses = 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        pauses.append(seconds)

    class Waiting:
        """A session without a terminal."""

        output: Any = Output(as_json=True)
        api: Any

    session: Any = Waiting()
    api.respond("GET", f"/v1/ops/commands/{COMMAND_ID}", command("RUNNING"))
    with closing(Api(Target("test", api.url, TOKEN))) as session.api, pytest.raises(UnavailableError, match="RUNNING"):
        follow(session, COMMAND_ID, timeout=2.5, sleep=sleep, clock=lambda: now)
    assert pauses == [1.0, 1.0, 0.5]


def test_import_does_not_wait_longer_than_its_patience() -> None:
    """T9: if the installation asks for a longer pause, it ends at once."""

    class BusyApi:
        """An installation that asks for a pause of a minute."""

        def send(self, *_arguments: Any, **_options: Any) -> Response:
            return Response(503, {"retry-after": "60"}, {"code": "UNAVAILABLE"})

    def sleep(_stop: threading.Event, _delay: float) -> bool:
        pytest.fail("it waits")

    api: Any = BusyApi()
    sender = Sender(api, concurrency=1, patience=30, notify=lambda _text: None, clock=lambda: 0.0, sleep=sleep)
    line = {"operation": "grant", "user_id": "u_1", "stock_keeping_unit": "i", "idempotency_key": "k"}
    with pytest.raises(UnavailableError):
        list(sender.send_all(make_batches(iter([(1, line)]))))


def test_server_of_a_local_stack_that_hangs_does_not_hang_status(home: Path) -> None:
    """T9: the state of a checkout has a limit of its own."""
    (home / "infra" / "local").mkdir(parents=True)
    (home / "infra" / "local" / "__main__.py").write_text("import signal\nsignal.pause()\n")
    with pytest.raises(CommandError, match=r"does not say its state within 0\.5 s"):
        Checkout(home).query("state", timeout=0.5)
