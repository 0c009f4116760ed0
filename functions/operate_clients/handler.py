"""The operations API for operators: administration of clients, with a database role of its own."""

from grantwire.api.http import HttpHandler
from grantwire.api.routes.clients import ROUTES
from grantwire.wiring.routes.operate_clients import ClientOperationsRuntime

handler = HttpHandler(ROUTES, ClientOperationsRuntime.build)
