"""The route of the console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.api.responses import Response

if TYPE_CHECKING:
    from grantwire.api.console import Console
    from grantwire.api.request import Request


def show_console(request: Request, console: Console) -> Response:
    """Return the page, or 304 if the browser already has it."""
    if console.is_current(request.headers.get("if-none-match", ())):
        return Response(304, "", console.headers)
    return Response(200, console.document, console.headers)
