"""Authorize a caller: return the IAM policy for a bearer token."""

from grantwire.api.authorizer import AuthorizerHandler
from grantwire.wiring.routes.authorize_caller import CallerRuntime

handler = AuthorizerHandler(
    "authorize_caller",
    CallerRuntime.build,
    lambda rt, header, method_arn: rt.authorizer.authorize(header, method_arn),
)
