"""The routes of the operations API (T1), and the one of a client about itself (T10).

Each parses its request, calls one use case, and returns its result.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from grantwire.api.responses import Response
from grantwire.operations.command_list import CommandQuery
from grantwire.operations.commands import DISCARD, REBUILD, REDRIVE, VERIFY, OperatorCommand
from grantwire.operations.dead_letters import DeadLetterQuery
from grantwire.operations.samples import parse_hours
from grantwire.operations.trace_query import TraceQuery
from grantwire.validation import single_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from grantwire.api.request import Request
    from grantwire.wiring.routes.operations import OperationsRuntime

    Route = Callable[[Request, OperationsRuntime], Response]


def show_status(request: Request, rt: OperationsRuntime) -> Response:
    """Read every stage in one snapshot."""
    single_values(request.query)
    return Response.from_json(rt.statuses.read())


def list_samples(request: Request, rt: OperationsRuntime) -> Response:
    """List the samples of the last hours."""
    return Response.from_json(rt.samples.list_hours(parse_hours(request.query)))


def list_dead_letters(request: Request, rt: OperationsRuntime) -> Response:
    """List one page of dead letters."""
    return Response.from_json(rt.dead_letters.list_page(DeadLetterQuery.parse(request.query)))


def group_dead_letters(request: Request, rt: OperationsRuntime) -> Response:
    """Count the open dead letters by kind and cause."""
    single_values(request.query)
    return Response.from_json(rt.dead_letters.list_groups())


def show_dead_letter(request: Request, rt: OperationsRuntime) -> Response:
    """Show one dead letter with its decoded message."""
    single_values(request.query)
    path = request.path_parameters
    return Response.from_json(rt.dead_letters.find(path.get("kind"), path.get("dead_letter_id")))


def change_dead_letters(kind: str, request: Request, rt: OperationsRuntime) -> Response:
    """Store a redrive or a discard; a dry run is executed at once, because it changes nothing."""
    single_values(request.query)
    body = request.json_object()
    command = OperatorCommand.parse(kind, body, request.source)
    identity = request.identity(body)
    if command.arguments.get("dry_run"):
        return Response.from_json(rt.dry_runs.execute(command))
    return Response.from_stored(rt.commands.submit(identity, command))


def change_read_model(kind: str, request: Request, rt: OperationsRuntime) -> Response:
    """Store a rebuild or a verification of the read model."""
    single_values(request.query)
    body = request.json_object()
    command = OperatorCommand.parse(kind, body, request.source)
    return Response.from_stored(rt.commands.submit(request.identity(body), command))


def list_commands(request: Request, rt: OperationsRuntime) -> Response:
    """List one page of commands."""
    return Response.from_json(rt.command_list.list_page(CommandQuery.parse(request.query)))


def show_command(request: Request, rt: OperationsRuntime) -> Response:
    """Show one command and its progress."""
    single_values(request.query)
    return Response.from_json(rt.command_list.find(request.path_parameters.get("command_id")))


def trace(request: Request, rt: OperationsRuntime) -> Response:
    """Follow a change through all stages."""
    return Response.from_json(rt.traces.find(TraceQuery.parse(request.query)))


def show_caller(request: Request, rt: OperationsRuntime) -> Response:
    """Describe the client of the token to itself."""
    single_values(request.query)
    return Response.from_json(rt.own_client.describe(request.authenticated_caller(), replaced=request.token_replaced))


ROUTES: Mapping[str, Route] = {
    "GET /v1/ops/status": show_status,
    "GET /v1/ops/samples": list_samples,
    "GET /v1/ops/dead-letters": list_dead_letters,
    "GET /v1/ops/dead-letters/groups": group_dead_letters,
    "GET /v1/ops/dead-letters/{kind}/{dead_letter_id}": show_dead_letter,
    "POST /v1/ops/dead-letters/redrive": partial(change_dead_letters, REDRIVE),
    "POST /v1/ops/dead-letters/discard": partial(change_dead_letters, DISCARD),
    "POST /v1/ops/read-model/rebuild": partial(change_read_model, REBUILD),
    "POST /v1/ops/read-model/verify": partial(change_read_model, VERIFY),
    "GET /v1/ops/commands": list_commands,
    "GET /v1/ops/commands/{command_id}": show_command,
    "GET /v1/ops/trace": trace,
    "GET /v1/me": show_caller,
}
