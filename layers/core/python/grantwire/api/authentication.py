"""Authentication of callers in a route whose gateway does not authenticate them.

The decisions are those of the authorizer, and the responses are those of API Gateway on AWS: 401 for a missing or
malformed token, 403 for a token that is not valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.api.request import UNAUTHENTICATED_MESSAGE
from grantwire.clients.scopes import ANONYMOUS, CLIENT_ROUTES
from grantwire.errors import ForbiddenError, RejectedError, UnauthenticatedError

if TYPE_CHECKING:
    from grantwire.api.request import Request
    from grantwire.clients.authorizer import DecisionCache

# The gateway response ACCESS_DENIED in template.yaml has the same text.
FORBIDDEN_MESSAGE = "invalid token or missing required scope"


def authenticate(request: Request, callers: DecisionCache) -> tuple[Request, RejectedError | None]:
    """Return the request with its caller and scopes, and the error if it must be refused.

    A caller that the event already contains is ignored, because no authorizer has checked it. Raises RetryableError if
    the client cannot be read.
    """
    decision = callers.decide(", ".join(request.headers.get("authorization", [])))
    caller = None if decision.client_id == ANONYMOUS else decision.client_id
    authenticated = request._replace(caller=caller, scopes=decision.scopes, token_replaced=decision.is_replaced)
    if decision.is_malformed:
        return authenticated, UnauthenticatedError(UNAUTHENTICATED_MESSAGE)
    is_allowed = decision.scopes or (decision.is_client and request.route in CLIENT_ROUTES)
    return authenticated, None if is_allowed else ForbiddenError(FORBIDDEN_MESSAGE)
