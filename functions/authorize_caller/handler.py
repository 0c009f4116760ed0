"""Decide who may call what."""

from grantwire.entrypoints.authorizer import AuthorizerHandler
from grantwire.runtime.clients import CallerRuntime

handler = AuthorizerHandler(
    "authorize_caller",
    CallerRuntime.build,
    lambda rt, header, method_arn: rt.authorizer.authorize(header, method_arn),
)
