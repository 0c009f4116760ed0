"""The console without a stack: its page as it is served, and requests that wait until the test answers them."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.browser.operators import open_page
from tests.support.contract import assert_matches_contract, document, operations, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from playwright.sync_api import Browser, Locator, Page, Route

    from grantwire.api.console import Console

STUB = (Path(__file__).parent / "stub.js").read_text()
ORIGIN = "https://console.test"  # nothing is sent to it: Playwright serves the page
STAGE = "/prod"
NOW = datetime(2026, 1, 8, 7, 30, tzinfo=UTC)
SESSION = {"token": f"gw_test_{'0' * 12}_{'0' * 43}", "actor": "Jane"}


@dataclass(frozen=True)
class Sent:
    """A request of the console. The path is as it was sent, below the stage."""

    number: int
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any

    @property
    def key(self) -> str:
        """The idempotency key."""
        return self.headers["Idempotency-Key"]


def example(method: str, template: str, status: int = 200, name: str | None = None) -> Any:
    """Return an example response of openapi.yaml, the first one by default."""
    response = resolve(document()["paths"][template][method.lower()]["responses"][str(status)])
    examples = response["content"]["application/json"]["examples"]
    return deepcopy(examples[name or next(iter(examples))]["value"])


class StubbedConsole:
    """The console of an operator who has signed in. Its clock moves only when the test says so."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @classmethod
    @contextmanager
    def open(cls, browser: Browser, console: Console, **settings: Any) -> Iterator[StubbedConsole]:
        """Serve the page with its headers in a new browser profile, with a stubbed `fetch`."""

        def serve(route: Route) -> None:
            route.fulfill(body=console.document, headers=dict(console.headers))

        with open_page(browser, **settings) as page:
            page.route(f"{ORIGIN}{STAGE}/console", serve)
            page.add_init_script(f"{STUB}\nstubFetch({json.dumps(SESSION)});")
            page.clock.install(time=NOW)
            page.clock.pause_at(NOW + timedelta(seconds=1))
            yield cls(page)

    def visit(self, place: str) -> None:
        """Open a page of the console by its address, as a bookmark does."""
        self.page.goto("about:blank")
        self.page.goto(f"{ORIGIN}{STAGE}/console#/{place}")

    def moves_to(self, place: str) -> None:
        """Change the address of the console that is open, as a link does."""
        self.page.evaluate("(hash) => stub.moveTo(hash)", f"#/{place}")

    def passes(self, milliseconds: int) -> None:
        """Let time pass for the page."""
        self.page.clock.run_for(milliseconds)

    def request(self, method: str, path: str) -> Sent:
        """Wait for the next request of a route, and return it. It has no response yet."""
        found = self.page.wait_for_function("([method, path]) => stub.take(method, path)", arg=[method, STAGE + path])
        sent = found.json_value()
        return Sent(**{**sent, "path": sent["path"].removeprefix(STAGE)})

    def count(self, method: str, path: str) -> int:
        """Return how many requests of a route were sent so far."""
        count: int = self.page.evaluate("([method, path]) => stub.count(method, path)", [method, STAGE + path])
        return count

    def answer(self, sent: Sent, body: Any, status: int = 200) -> None:
        """Send the response to a request, which must match openapi.yaml. The console has processed it afterwards."""
        text = _response_text(sent.method, sent.path, body, status)
        self.page.evaluate("(arguments) => stub.answer(...arguments)", [sent.number, status, text])

    def answer_all(self, method: str, path: str, body: Any, status: int = 200) -> None:
        """Send the same response to all requests of a route that wait, if there are any."""
        text = _response_text(method, path, body, status)
        self.page.evaluate("(arguments) => stub.answerAll(...arguments)", [method, STAGE + path, status, text])

    def has_scopes(self, *scopes: str) -> None:
        """Answer the question about the client of the token: it has these scopes."""
        self.answer(self.request("GET", "/v1/me"), example("GET", "/v1/me") | {"scopes": scopes})

    def lose(self, sent: Sent) -> None:
        """Let a request end without a response."""
        self.page.evaluate("(number) => stub.lose(number)", sent.number)

    def button(self, name: str) -> Locator:
        """Return a button by its name."""
        return self.page.get_by_role("button", name=name)


def _response_text(method: str, path: str, body: Any, status: int) -> str:
    """Return a response as text; it must match openapi.yaml."""
    text = json.dumps(body)
    template = next(each for other, each, _ in operations() if other == method and _matches(each, path))
    headers = {"Content-Type": "application/json"} | ({"Retry-After": "1"} if status == 503 else {})
    response = resolve(document()["paths"][template][method.lower()]["responses"][str(status)])
    if "Cache-Control" in response.get("headers", {}):
        headers["Cache-Control"] = "no-store"
    assert_matches_contract(method, template, status, headers, text)
    return text


def _matches(template: str, path: str) -> bool:
    return re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path) is not None
