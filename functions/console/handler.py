"""Serve the console, a static page without data that uses the operations API with the operator's token."""

from pathlib import Path

from grantwire.api.console import Console
from grantwire.api.http import HttpHandler
from grantwire.api.routes.console import show_console
from grantwire.wiring.gateway import Gateway

PAGE = Path(__file__).parent / "page"

# The route is public, so nothing authenticates its callers.
handler = HttpHandler({"GET /console": show_console}, lambda _: Console.assemble(PAGE), lambda _: Gateway())
