"""The operations API for operators: administration of clients, with a database role of its own."""

from grantwire.entrypoints.client_operations import ROUTES
from grantwire.entrypoints.http import HttpHandler
from grantwire.wiring.routes.operate_clients import ClientOperationsRuntime

handler = HttpHandler(ROUTES, ClientOperationsRuntime.build)
