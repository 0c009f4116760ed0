"""The Lambda authorizer of the API: TOKEN authorizer event in, IAM policy out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from grantwire.api.responses import REFUSED
from grantwire.clients.authorizer import allows
from grantwire.clients.scopes import ANONYMOUS
from grantwire.errors import UnauthenticatedError
from grantwire.observability import begin_invocation, logger, metrics
from grantwire.wiring.lazy import LazyRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

R = TypeVar("R")


class AuthorizerHandler(Generic[R]):
    """The Lambda handler of an authorizer.

    It raises every error. API Gateway then denies the request, responds with 500 or the template's gateway response
    for it, and does not cache the result.

    The metrics AuthorizerFailures and CallersRefused have alarms. Callers without a genuine token count in neither, so
    that a stranger cannot raise an alarm (G12); they are in RequestsRefused, as `anonymous`.
    """

    def __init__(
        self, name: str, build: Callable[[Mapping[str, str]], R], authorize: Callable[[R, str, str], dict[str, Any]]
    ) -> None:
        self.name = name
        self._runtime = LazyRuntime(build)
        self._authorize = authorize

    def __call__(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Return the IAM policy for the token in `event`."""
        begin_invocation(aws_request_id=getattr(context, "aws_request_id", None))
        try:
            method_arn = str(event["methodArn"])
            policy = self._authorize(self._runtime.get(), str(event.get("authorizationToken") or ""), method_arn)
        except UnauthenticatedError:
            # Not a failure: API Gateway responds with 401 and does not cache it. Lambda counts an error, so the alarm
            # FunctionErrors does not watch this function.
            self._write_metric("CallersRefused", 0, ANONYMOUS, "UNAUTHENTICATED")
            raise
        except Exception:
            logger.exception("authorizer failed, denying request")
            self._write_metric("AuthorizerFailures", 1)
            raise
        caller = policy["principalId"]
        is_allowed = allows(policy, method_arn)
        is_denied = not is_allowed and not policy["context"]["scopes"]
        refused = None if is_allowed else caller
        self._write_metric("CallersRefused", int(is_denied and caller != ANONYMOUS), refused)
        return policy

    def _write_metric(self, name: str, value: int, refused: str | None = None, outcome: str = "FORBIDDEN") -> None:
        """Write one document. `refused` is the caller whose request API Gateway will refuse, with this outcome."""
        metrics.write_document(
            {name: {"Unit": "Count", "Value": [float(value)]}},
            dimensions={"worker": self.name, "service": str(metrics.service)},
            metadata={} if refused is None else {"caller": refused, "outcome": outcome},
            counted={} if refused is None else REFUSED,
        )
