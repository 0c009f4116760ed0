"""The operations API for operators: status, samples, dead letters, commands and traces."""

from grantwire.api.http import HttpHandler
from grantwire.api.routes.operations import ROUTES
from grantwire.wiring.routes.operations import OperationsRuntime

handler = HttpHandler(ROUTES, OperationsRuntime.build)
