"""Serve the console, a static page without data that uses the operations API with the operator's token."""

from pathlib import Path

from grantwire.console import Console
from grantwire.entrypoints.http import HttpHandler, Request, Response
from grantwire.wiring.gateway import Gateway

PAGE = Path(__file__).parent / "page"


def handle(request: Request, console: Console) -> Response:
    """Return the page, or 304 if the browser already has it."""
    if console.is_current(request.headers.get("if-none-match", ())):
        return Response(304, "", console.headers)
    return Response(200, console.document, console.headers)


# The route is public, so nothing authenticates its callers.
handler = HttpHandler({"GET /console": handle}, lambda _: Console.assemble(PAGE), lambda _: Gateway())
