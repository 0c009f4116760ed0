"""Where a command of an operator came from (G4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grantwire.entrypoints.request import Request


def describe_source(request: Request) -> str:
    """Return where a command came from, for its action. The caller chooses no part of it."""
    return f"client {request.caller}, request {request.request_id}, address {request.source_address or 'unknown'}"
