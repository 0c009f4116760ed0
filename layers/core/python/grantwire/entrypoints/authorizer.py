"""The Lambda authorizer of the API: TOKEN authorizer event in, IAM policy out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from grantwire.errors import UnauthenticatedError
from grantwire.observability import MetricUnit, begin_invocation, logger, metrics
from grantwire.runtime.lazy import LazyRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

R = TypeVar("R")


class AuthorizerHandler(Generic[R]):
    """The Lambda handler of an authorizer.

    It raises every error. API Gateway then denies the request, responds with 500 or the template's gateway response
    for it, and does not cache the result.
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
        metrics.add_dimension("worker", self.name)
        try:
            policy = self._authorize(
                self._runtime.get(), str(event.get("authorizationToken") or ""), str(event["methodArn"])
            )
        except UnauthenticatedError:
            # Not a failure: API Gateway responds with 401 and does not cache it.
            metrics.add_metric("CallersRefused", MetricUnit.Count, 1)
            raise
        except Exception:
            logger.exception("authorizer failed, denying request")
            metrics.add_metric("AuthorizerFailures", MetricUnit.Count, 1)
            raise
        else:
            refused = policy["policyDocument"]["Statement"][0]["Effect"] == "Deny"
            metrics.add_metric("CallersRefused", MetricUnit.Count, int(refused))
            return policy
        finally:
            metrics.flush_metrics()
